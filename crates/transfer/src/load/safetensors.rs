//! Checkpoints in the safetensors format: where each tensor is in its file, and its place in one device memory.

mod header;
mod json;
mod limits;
mod shards;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::ops::{ControlFlow, Range};

use devmem_tcp::{Dmabuf, Remedy};

use super::dial::{self, GoOn};
use super::error::LoadError;
use super::http::{HttpFile, HttpRequest, UrlError};
use super::loader::{Loaded, Loader};
use super::part::Part;
use super::source::Source;
use crate::parallel::{Progress, write_error};
pub use header::HeaderError;
use header::{Header, Unparsed};
use limits::Budget;
pub use limits::CheckpointLimit;

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

/// Why a checkpoint cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file or a part of it could not be loaded.
    Load(#[from] LoadError),
    /// A header is invalid.
    Header {
        /// URL of the file.
        file: String,
        /// The mistake.
        source: HeaderError,
    },
    /// The index of the shards is invalid.
    Index {
        /// URL of the index.
        file: String,
        /// The mistake.
        problem: String,
    },
    /// Two files have a tensor of the same name.
    Twice {
        /// Name of the tensor.
        name: String,
        /// URL of the second file.
        file: String,
    },
    /// A file lacks a tensor that the index places in it.
    Missing {
        /// Name of the tensor.
        name: String,
        /// URL of the file.
        file: String,
    },
    /// The server does not tell the size of a file.
    NoSize {
        /// URL of the file.
        file: String,
    },
    /// The description of the checkpoint is too large to be read into host memory.
    Limit {
        /// URL of the file with which it is too large.
        file: String,
        /// The limit.
        source: CheckpointLimit,
    },
    /// The tensors need more memory than there is in this address space.
    TooLarge,
}

impl CheckpointError {
    /// Returns the reason, in one line.
    pub fn reason(&self) -> String {
        match self {
            Self::Load(error) => error.reason(),
            Self::Header { file, source } => format!("{file} is no safetensors file: {source}"),
            Self::Index { file, problem } => {
                format!("{file} is no index of safetensors files: {problem}")
            }
            Self::Twice { name, file } => {
                format!("tensor {name:?} of {file} is in another file of the checkpoint, too")
            }
            Self::Missing { name, file } => {
                format!("{file} has no tensor {name:?}, which the index says it has")
            }
            Self::NoSize { file } => format!("the server does not tell the size of {file}"),
            Self::Limit { file, source } => {
                format!("the checkpoint with {file} is too large to be described: {source}")
            }
            Self::TooLarge => "the tensors do not fit into memory".to_owned(),
        }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Load(error) => return error.remedy(),
            Self::Header { .. } | Self::Index { .. } => return None,
            Self::Twice { .. } => {
                "load a whole checkpoint: these shards are not those of one".into()
            }
            Self::Missing { .. } => {
                "load a whole checkpoint: index and shards are not those of one".into()
            }
            Self::NoSize { .. } => "use a server that does: nginx, or an object store".into(),
            Self::Limit { .. } => "load its files one by one".into(),
            Self::TooLarge => "load the file to a file: its tensors need not fit then".into(),
        })
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_error(f, &self.reason(), self.remedy())
    }
}

impl From<UrlError> for CheckpointError {
    fn from(error: UrlError) -> Self {
        Self::Load(error.into())
    }
}

/// An opened checkpoint: one safetensors file, or the shards of a `*.index.json`.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<CheckpointFile>,
    tensors: Vec<Tensor>,
    memory_bytes: usize,
}

/// A file of a checkpoint.
#[derive(Debug)]
struct CheckpointFile {
    file: HttpFile,
    /// For each tensor its bytes in the file, and its place.
    places: Vec<(Range<u64>, Range<usize>)>,
}

/// What is still free while the files are added.
struct Room {
    /// End of the last place.
    end: u64,
    budget: Budget,
}

impl Checkpoint {
    /// Opens the checkpoint: reads the header of the file, or of each shard that the index names, and gives every tensor a
    /// place. The shards lie beside the index.
    ///
    /// # Errors
    /// A file cannot be read, or is not what its name says.
    pub fn open(loader: &Loader, request: HttpRequest) -> Result<Self, CheckpointError> {
        Self::open_while(loader, request, &mut dial::always)
    }

    /// As [`open`](Self::open), while `go_on` says so. It is asked at least every 100 ms.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`LoadError::Cancelled`].
    pub fn open_while(
        loader: &Loader,
        request: HttpRequest,
        go_on: &mut GoOn<'_>,
    ) -> Result<Self, CheckpointError> {
        let mut checkpoint = Self {
            files: Vec::new(),
            tensors: Vec::new(),
            memory_bytes: 0,
        };
        let mut room = Room {
            end: 0,
            budget: Budget::new(),
        };
        if request.url().file_name().ends_with(".json") {
            for shard in shards::of(loader, request, go_on)? {
                let file = shard.request.url().to_string();
                let added = checkpoint.tensors.len();
                checkpoint.add(loader, shard.request, &mut room, go_on)?;
                checkpoint.check_added(added, &shard.tensors, &file)?;
            }
            checkpoint.check_names()?;
        } else {
            checkpoint.add(loader, request, &mut room, go_on)?;
        }
        let pages = room.end.max(1).checked_next_multiple_of(PAGE_BYTES);
        let bytes = pages.and_then(|bytes| usize::try_from(bytes).ok());
        checkpoint.memory_bytes = bytes.ok_or(CheckpointError::TooLarge)?;
        Ok(checkpoint)
    }

    /// Returns the tensors, in the order of their places.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
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

    /// Returns whether the server serves ranges: see [`HttpFile::serves_ranges`].
    pub fn serves_ranges(&self) -> bool {
        self.files.iter().all(|found| found.file.serves_ranges())
    }

    /// Returns the addresses of the servers, each once.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let all = self.files.iter().flat_map(|found| found.file.addresses());
        all.copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Loads all tensors to their places in `memory`, one file after the other.
    ///
    /// # Errors
    /// The memory is too small, or a file cannot be loaded.
    pub fn load(
        &self,
        loader: &Loader,
        memory: &Dmabuf,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let total = self.tensor_bytes();
        let mut all = Loaded::default();
        for CheckpointFile { file, places } in &self.files {
            let parts: Vec<_> = places
                .iter()
                .map(|(source, place)| Part {
                    source: source.clone(),
                    memory: memory.clone(),
                    offset: place.start,
                })
                .collect();
            let before = all.bytes;
            let loaded = loader.load(file, &parts, &mut |so_far| {
                progress(Progress {
                    bytes: before + so_far.bytes,
                    total,
                    ..so_far
                })
            })?;
            all.add(&loaded);
        }
        Ok(all)
    }

    /// Checks that the tensors from number `added` on, those of one file, are those that the index says it has.
    fn check_added(
        &self,
        added: usize,
        expected: &BTreeSet<String>,
        file: &str,
    ) -> Result<(), CheckpointError> {
        let new = &self.tensors[added..];
        let names: BTreeSet<_> = new.iter().map(|tensor| &tensor.name).collect();
        let file = file.to_owned();
        match expected.iter().find(|name| !names.contains(name)) {
            Some(missing) => {
                let name = header::shortened(missing);
                Err(CheckpointError::Missing { name, file })
            }
            None => Ok(()),
        }
    }

    /// Checks that the tensors of all files have different names.
    fn check_names(&self) -> Result<(), CheckpointError> {
        let mut order: Vec<_> = (0..self.tensors.len()).collect();
        let name = |index: usize| self.tensors[index].name.as_str();
        order.sort_unstable_by_key(|&index| (name(index), index));
        let twice = order.windows(2).find(|pair| name(pair[0]) == name(pair[1]));
        let Some(&[_, second]) = twice else {
            return Ok(());
        };
        let mut end = 0;
        let found = self.files.iter().find(|found| {
            end += found.places.len();
            second < end
        });
        Err(CheckpointError::Twice {
            name: header::shortened(name(second)),
            file: found.map_or_else(String::new, |found| found.file.request().url().to_string()),
        })
    }

    /// Adds a file, whose first tensor is placed after those of the files before.
    fn add(
        &mut self,
        loader: &Loader,
        request: HttpRequest,
        room: &mut Room,
        go_on: &mut GoOn<'_>,
    ) -> Result<(), CheckpointError> {
        let file = loader.open_file(request, go_on)?;
        let name = file.request().url().to_string();
        let Some(size) = file.size() else {
            return Err(CheckpointError::NoSize { file: name });
        };
        let wrong = |source| CheckpointError::Header {
            file: name.clone(),
            source,
        };
        header::check_size(size).map_err(wrong)?;
        let source = Source::from(&file);
        let length = loader.read(&source, 0, header::LENGTH_BYTES, go_on)?;
        let text_len = header::text_len(&length, size).map_err(wrong)?;
        let beyond = |source| CheckpointError::Limit {
            file: name.clone(),
            source,
        };
        room.budget.take_header(text_len).map_err(beyond)?;
        let text_start = u64::from(header::LENGTH_BYTES);
        let data_start = text_start + u64::from(text_len);
        let text = loader.read(&source, text_start, text_len, go_on)?;
        let most = room.budget.tensors();
        let header = Header::parse(&text, size - data_start, most, go_on);
        drop(text);
        let header = header.map_err(|unparsed| match unparsed {
            Unparsed::Wrong(source) => wrong(source),
            Unparsed::TooMany => beyond(CheckpointLimit::Tensors),
            Unparsed::Cancelled => CheckpointError::Load(LoadError::Cancelled),
        })?;
        room.budget.take_tensors(header.tensors.len());
        let mut places = Vec::with_capacity(header.tensors.len());
        for tensor in header.tensors {
            let place = placed(&tensor.data, &mut room.end).ok_or(CheckpointError::TooLarge)?;
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
        self.files.push(CheckpointFile { file, places });
        Ok(())
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
    if let Ok(names) = shards::names(data, &mut dial::always) {
        assert!(names.keys().all(|name| !name.contains(['/', ':', '?'])));
    }
    let (length, rest) = data.split_at(data.len().min(8));
    let Ok(len) = header::text_len(length, data.len() as u64) else {
        return;
    };
    let (text, tensors) = rest.split_at(len as usize);
    let Ok(header) = Header::parse(text, tensors.len() as u64, 1000, &mut dial::always) else {
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
