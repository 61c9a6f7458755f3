//! Checkpoints in the safetensors format: where each tensor is in its file, and its place in one device memory.

mod error;
mod header;
mod json;
mod limits;
mod openings;
pub(crate) mod selected;
pub(crate) mod selection;
mod shards;
pub(crate) mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use client::dial::CancelCheck;
use client::http::{HttpFile, HttpRequest};
use client::{LoadError, dial};
use devmem_tcp::Dmabuf;

use super::http::Volume;
use super::loaded::Loaded;
use super::loader::Loader;
use super::part::Part;
use super::source::Source;
use crate::checksum::Crc32c;
use crate::parallel::Progress;
pub use error::CheckpointError;
pub use header::HeaderError;
use header::{Described, Header, HeaderFailure};
pub use limits::CheckpointLimit;
use limits::{Budget, FIRST_BYTES, MAX_EARLY_BYTES};
use openings::open_each;

/// Alignment of every tensor in device memory: that of CUDA's allocations, enough for all loads and stores of GPUs.
const ALIGNMENT: u64 = 256;
/// Device memory is allocated in pages.
const PAGE_BYTES: u64 = 4096;

/// A tensor of a checkpoint, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Type of its elements, as the file names it: F32, BF16.
    pub dtype: String,
    /// Its dimensions, the outermost first.
    pub shape: Vec<u64>,
    /// Its bytes in the device memory. They start at a multiple of 256.
    pub place: Range<usize>,
}

/// An opened checkpoint: one safetensors file, or the shards of a `*.index.json`.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<CheckpointFile>,
    volume: Volume,
    tensors: Vec<Tensor>,
    metadata: Vec<Metadata>,
    memory_bytes: usize,
}

/// The texts that the writer of a file has added to it (`__metadata__`), by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// URL of the file.
    pub file: String,
    /// The texts; `None` if they have more than 1 MiB.
    pub texts: Option<BTreeMap<String, String>>,
}

/// Bytes of a tensor in its file, and its place.
type Placement = (Range<u64>, Range<usize>);

/// A file of a checkpoint.
#[derive(Debug)]
struct CheckpointFile {
    /// Number of its first tensor.
    first: usize,
    places: Vec<Placement>,
    /// Bytes of the tensors that came with the header, and the first one's offset in the file.
    early: Vec<u8>,
    early_start: u64,
    /// The checksum of the bytes before them.
    header_sum: Crc32c,
    /// All tensors of the file are tensors of the checkpoint.
    is_whole: bool,
}

/// A checkpoint whose files are added one after the other.
struct Opening<'a> {
    loader: &'a Loader,
    /// The opened files, in their order.
    opened: Vec<HttpFile>,
    files: Vec<CheckpointFile>,
    tensors: Vec<Tensor>,
    metadata: Vec<Metadata>,
    /// End of the last place.
    end: u64,
    budget: Budget,
    /// Bytes that may still be kept in host memory until the load.
    early_bytes: usize,
}

/// What is before the tensors of a file.
struct Beginning {
    header: Header,
    /// Offset of the first tensor.
    data_start: u64,
    /// The checksum of the bytes before it.
    sum: Crc32c,
    /// Bytes of the tensors that have come with it.
    early: Vec<u8>,
}

impl Checkpoint {
    /// Opens the checkpoint: reads the header of the file, or of each shard that the index names, several at a time, and gives every tensor a
    /// place. The shards lie beside the index, at the URL that the user gave. Of each, the tensors are loaded that the index places in it.
    ///
    /// # Errors
    /// A file cannot be read, or is not what its name says.
    pub fn open(loader: &Loader, request: HttpRequest) -> Result<Self, CheckpointError> {
        Self::open_cancellable(loader, request, &mut dial::never_cancelled)
    }

    /// As [`open`](Self::open), unless `cancel_check` cancels it: called at least every 100 ms.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`LoadError::Cancelled`].
    pub fn open_cancellable(
        loader: &Loader,
        request: HttpRequest,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, CheckpointError> {
        let pool = Arc::default();
        let client = loader.client(&pool);
        let mut opening = Opening {
            loader,
            opened: Vec::new(),
            files: Vec::new(),
            tensors: Vec::new(),
            metadata: Vec::new(),
            end: 0,
            budget: Budget::new(),
            early_bytes: MAX_EARLY_BYTES,
        };
        if request.url().file_name().ends_with(".json") {
            let shards = shards::of(loader, client, request, cancel_check)?;
            let openings = loader.settings.openings();
            open_each(
                client,
                &shards,
                openings,
                cancel_check,
                &mut |index, opened, cancel_check| {
                    opening.add(opened, Some(&shards[index].tensors), cancel_check)
                },
            )?;
        } else {
            let opened = HttpFile::open_with(client, &request, FIRST_BYTES, cancel_check)?;
            opening.add(opened, None, cancel_check)?;
        }
        opening.end()
    }

    /// Returns the tensors, in the order of their places.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns what the writers of the files have added to them, in the order of the files.
    pub fn metadata(&self) -> &[Metadata] {
        &self.metadata
    }

    /// Returns the size of the memory for all tensors, in bytes: a multiple of 4096.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Returns the number of bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        let lengths = self.tensors.iter().map(|tensor| tensor.place.len() as u64);
        lengths.sum()
    }

    /// Returns the number of bytes that came with the headers: they are in host memory, and [`load`](Self::load) requests only the others.
    pub fn early_bytes(&self) -> u64 {
        let kept = self.files.iter().map(|file| file.early.len() as u64);
        kept.sum()
    }

    /// Returns whether bytes come by https, and the CPU decrypts them in host memory.
    pub fn is_encrypted(&self) -> bool {
        self.volume.is_encrypted()
    }

    /// Returns whether the server serves ranges: see [`HttpFile::serves_ranges`].
    pub fn serves_ranges(&self) -> bool {
        self.volume.serves_ranges()
    }

    /// Returns the addresses of the servers, each once.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.volume.addresses().to_vec()
    }

    /// Loads all tensors to their places in `memory`, those of several files at the same time.
    ///
    /// # Errors
    /// The memory is too small, or a file cannot be loaded.
    pub fn load(
        &self,
        loader: &Loader,
        memory: &Dmabuf,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let (mut parts, mut early) = (Vec::new(), 0);
        for (file, base) in self.files.iter().zip(self.volume.starts()) {
            for (source, place) in &file.places {
                let came = file.put_early(source, place.start, memory)?;
                early += came;
                // Fits: it is at most the length of the place.
                let inside = usize::try_from(came).unwrap_or(place.len());
                parts.push(Part {
                    source: base + source.start + came..base + source.end,
                    memory: memory.clone(),
                    offset: place.start + inside,
                });
            }
        }
        let total = self.tensor_bytes();
        let source = Source::Files(self.volume.clone());
        let mut loaded = loader.load(source, &parts, &mut |so_far| {
            progress(Progress {
                bytes: early + so_far.bytes,
                total,
                ..so_far
            })
        })?;
        loaded.bytes += early;
        Ok(loaded)
    }
}

impl CheckpointFile {
    /// Copies those bytes of a range that came with the header to its place, and returns their number.
    fn put_early(
        &self,
        source: &Range<u64>,
        place: usize,
        memory: &Dmabuf,
    ) -> Result<u64, LoadError> {
        let early_end = self.early_start + self.early.len() as u64;
        let end = source.end.min(early_end);
        let Some(len) = end.checked_sub(source.start).filter(|len| *len > 0) else {
            return Ok(0);
        };
        // Inside: the early bytes begin where the first tensor does.
        let from = usize::try_from(source.start - self.early_start).unwrap_or(usize::MAX);
        let bytes = self.early.get(from..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX))];
        let copied = memory.copy_in(place, bytes);
        copied.map_err(|error| LoadError::Gather(error.into()))?;
        Ok(bytes.len() as u64)
    }
}

impl Opening<'_> {
    /// Adds a file, whose first tensor is placed after those of the files before: of the tensors that are `wanted`, or of all.
    fn add(
        &mut self,
        (file, bytes): (HttpFile, Vec<u8>),
        wanted: Option<&BTreeSet<String>>,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(), CheckpointError> {
        let name = file.name();
        let Beginning {
            header,
            data_start,
            sum,
            mut early,
        } = self.begin(&file, bytes, cancel_check)?;
        self.budget.take_tensors(header.tensors.len());
        let mut tensors = header.tensors;
        let count = tensors.len();
        if let Some(wanted) = wanted {
            check_has(&tensors, wanted, &name)?;
            tensors.retain(|tensor| wanted.contains(&tensor.name));
        }
        let is_whole = tensors.len() == count;
        early.truncate(self.early_bytes);
        self.early_bytes -= early.len();
        early.shrink_to_fit();
        let (first, places) = (self.tensors.len(), self.place(tensors, data_start)?);
        self.files.push(CheckpointFile {
            first,
            places,
            early,
            early_start: data_start,
            header_sum: sum,
            is_whole,
        });
        self.metadata.push(Metadata {
            file: name,
            texts: header.metadata,
        });
        self.opened.push(file);
        Ok(())
    }

    /// Reads what is before the tensors of a file, of which the first `bytes` have come.
    fn begin(
        &mut self,
        file: &HttpFile,
        mut bytes: Vec<u8>,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Beginning, CheckpointError> {
        let name = file.name();
        let Some(size) = file.size() else {
            return Err(CheckpointError::NoSize { file: name });
        };
        let wrong = |error| CheckpointError::Header {
            file: name.clone(),
            error,
        };
        header::check_size(size).map_err(wrong)?;
        let source = Source::from(file);
        if bytes.len() < header::LENGTH_BYTES as usize {
            self.loader
                .read_on(&source, &mut bytes, header::LENGTH_BYTES, cancel_check)?;
        }
        let text_len = header::text_len(&bytes, size).map_err(wrong)?;
        let beyond = |error| CheckpointError::Limit {
            file: name.clone(),
            error,
        };
        self.budget.take_header(text_len).map_err(beyond)?;
        // Fits: a header has at most 100 MB.
        let data_start = header::LENGTH_BYTES + text_len;
        let early = match bytes.len() > data_start as usize {
            true => bytes.split_off(data_start as usize),
            false => Vec::new(),
        };
        self.loader
            .read_on(&source, &mut bytes, data_start, cancel_check)?;
        let data_start = u64::from(data_start);
        let mut sum = Crc32c::default();
        sum.add(&bytes);
        let text = bytes.get(header::LENGTH_BYTES as usize..);
        let text = text.unwrap_or_default();
        let header = Header::parse(text, size - data_start, self.budget.tensors(), cancel_check);
        let header = header.map_err(|unparsed| match unparsed {
            HeaderFailure::Wrong(source) => wrong(source),
            HeaderFailure::TooMany => beyond(CheckpointLimit::Tensors),
            HeaderFailure::Cancelled => CheckpointError::Load(LoadError::Cancelled),
        })?;
        Ok(Beginning {
            header,
            data_start,
            sum,
            early,
        })
    }

    /// Gives tensors of a file their places. Returns the bytes of each in the file, and its place.
    fn place(
        &mut self,
        tensors: Vec<Described>,
        data_start: u64,
    ) -> Result<Vec<Placement>, CheckpointError> {
        let mut places = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let place = placed(&tensor.data, &mut self.end).ok_or(CheckpointError::TooLarge)?;
            // Inside the file, which the header was checked against.
            let source = data_start + tensor.data.start..data_start + tensor.data.end;
            places.push((source, place.clone()));
            self.tensors.push(Tensor {
                name: tensor.name,
                dtype: tensor.dtype,
                shape: tensor.shape,
                place,
            });
        }
        Ok(places)
    }

    fn end(self) -> Result<Checkpoint, CheckpointError> {
        let pages = self.end.max(1).checked_next_multiple_of(PAGE_BYTES);
        let bytes = pages.and_then(|bytes| usize::try_from(bytes).ok());
        Ok(Checkpoint {
            volume: Volume::new(self.opened).ok_or(CheckpointError::TooLarge)?,
            files: self.files,
            tensors: self.tensors,
            metadata: self.metadata,
            memory_bytes: bytes.ok_or(CheckpointError::TooLarge)?,
        })
    }
}

/// Checks that a file has the tensors that the index places in it.
fn check_has(
    tensors: &[Described],
    wanted: &BTreeSet<String>,
    file: &str,
) -> Result<(), CheckpointError> {
    let mut names: Vec<_> = tensors.iter().map(|tensor| &tensor.name).collect();
    names.sort_unstable();
    match wanted
        .iter()
        .find(|name| names.binary_search(name).is_err())
    {
        Some(missing) => Err(CheckpointError::Missing {
            name: header::shortened(missing),
            file: file.to_owned(),
        }),
        None => Ok(()),
    }
}

/// Returns the place of a tensor after `end`, and moves `end` behind it.
fn placed(data: &Range<u64>, end: &mut u64) -> Option<Range<usize>> {
    let start = end.checked_next_multiple_of(ALIGNMENT)?;
    *end = start.checked_add(data.end - data.start)?;
    Some(usize::try_from(start).ok()?..usize::try_from(*end).ok()?)
}

/// The body of the fuzz target of the parsers.
#[cfg(feature = "test-util")]
pub(crate) fn fuzz(data: &[u8]) {
    // The names become URLs.
    if let Ok(names) = shards::names(data, &mut dial::never_cancelled) {
        assert!(names.keys().all(|name| !name.contains(['/', '\\', '?'])));
    }
    let (length, rest) = data.split_at(data.len().min(8));
    let Ok(len) = header::text_len(length, data.len() as u64) else {
        return;
    };
    let (text, tensors) = rest.split_at(len as usize);
    let Ok(header) = Header::parse(text, tensors.len() as u64, 1000, &mut dial::never_cancelled)
    else {
        return;
    };
    let mut end = 0;
    for tensor in &header.tensors {
        assert_eq!(tensor.data.start, end);
        end = tensor.data.end;
    }
    assert_eq!(end, tensors.len() as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned_and_close_together() {
        let mut end = 0;
        assert_eq!(placed(&(0..100), &mut end), Some(0..100));
        assert_eq!(placed(&(100..100), &mut end), Some(256..256));
        assert_eq!(placed(&(100..357), &mut end), Some(256..513));
        assert_eq!(placed(&(0..u64::MAX), &mut end), None);
    }
}
