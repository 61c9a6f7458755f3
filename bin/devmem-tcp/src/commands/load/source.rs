//! What `load` loads: a range of a file or of an export, or the tensors of a checkpoint.

use std::net::SocketAddr;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;

use devmem_tcp::Dmabuf;

use super::failure;
use super::target::Target;
use crate::plan::{LoadJob, LoadOrigin, Protocol};
use crate::report::TensorRow;
use tool::output::Failure;
use tool::pattern::BLOCK_BYTES;
use tool::receive::for_each_block;
use tool::signals::StopFlag;
use transfer::load::{
    Checkpoint, CheckpointError, HttpFile, HttpRequest, Landed, LoadError, Loaded, Loader,
    NbdExport, Part, Progress,
};

/// What is loaded.
pub enum Source {
    /// A range of a file.
    File(HttpFile, Range<u64>),
    /// A range of an NBD export.
    Export(NbdExport, Range<u64>),
    /// All tensors of a checkpoint.
    Checkpoint(Checkpoint, String),
}

impl Source {
    pub fn open(job: &LoadJob, loader: &Loader, stop: &StopFlag) -> Result<Self, Failure> {
        let request = match &job.origin {
            LoadOrigin::Nbd(url) => {
                let export = NbdExport::open(loader.nic(), url.clone());
                let export = export.map_err(|error| failure(error, Protocol::Nbd, stop))?;
                let range = job.range.clone().unwrap_or(0..export.size());
                return Ok(Self::Export(export, range));
            }
            LoadOrigin::Http(request) => request.clone(),
        };
        if job.is_checkpoint() {
            return Self::checkpoint(loader, request, stop);
        }
        let file = HttpFile::open(loader.nic(), request)
            .map_err(|error| failure(error, Protocol::Http, stop))?;
        let range = match (&job.range, file.size()) {
            (Some(range), _) => range.clone(),
            (None, Some(size)) => 0..size,
            (None, None) => {
                let text = "the server does not tell the size of the file";
                let remedy = "name it with --range 0-SIZE";
                return Err(Failure::failed(text).with_remedy(remedy));
            }
        };
        Ok(Self::File(file, range))
    }

    fn checkpoint(loader: &Loader, request: HttpRequest, stop: &StopFlag) -> Result<Self, Failure> {
        let name = request.url().to_string();
        match Checkpoint::open(loader, request) {
            Ok(checkpoint) => Ok(Self::Checkpoint(checkpoint, name)),
            Err(CheckpointError::Load(error)) => Err(failure(error, Protocol::Http, stop)),
            Err(error @ (CheckpointError::Header { .. } | CheckpointError::Index { .. })) => {
                let failure = Failure::from(error);
                Err(failure.with_remedy("--to FILE loads a file of any format"))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::File(file, _) => file.request().url().to_string(),
            Self::Export(export, _) => export.url().to_string(),
            Self::Checkpoint(_, name) => name.clone(),
        }
    }

    /// Returns the addresses of the servers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::File(file, _) => file.addresses().to_vec(),
            Self::Export(export, _) => export.addresses().to_vec(),
            Self::Checkpoint(checkpoint, _) => checkpoint.addresses(),
        }
    }

    /// Returns the number of bytes to load.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::File(_, range) | Self::Export(_, range) => range.end - range.start,
            Self::Checkpoint(checkpoint, _) => checkpoint.tensor_bytes(),
        }
    }

    /// Returns the number of bytes of the target: with the gaps between tensors.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::File(..) | Self::Export(..) => self.bytes(),
            Self::Checkpoint(checkpoint, _) => checkpoint.memory_bytes() as u64,
        }
    }

    pub fn tensors(&self) -> Option<Vec<TensorRow>> {
        match self {
            Self::File(..) | Self::Export(..) => None,
            Self::Checkpoint(checkpoint, _) => {
                Some(checkpoint.tensors().iter().map(TensorRow::from).collect())
            }
        }
    }

    pub fn serves_ranges(&self) -> bool {
        match self {
            Self::File(file, _) => file.serves_ranges(),
            Self::Export(..) => true,
            Self::Checkpoint(checkpoint, _) => checkpoint.serves_ranges(),
        }
    }

    /// Returns the server's checksum of the loaded bytes, if it sent one.
    pub fn crc32c(&self) -> Option<u32> {
        match self {
            Self::File(file, range) if file.size() == Some(range.end - range.start) => {
                file.crc32c()
            }
            // It is of the whole file.
            Self::File(..) | Self::Export(..) | Self::Checkpoint(..) => None,
        }
    }

    pub fn load(
        &self,
        loader: &Loader,
        bound: &Dmabuf,
        target: &Target,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let (source, range) = match self {
            Self::Checkpoint(checkpoint, _) => {
                let memory = target.memory().expect("files are loaded as they are");
                return checkpoint.load(loader, memory, progress);
            }
            Self::File(file, range) => (transfer::load::Source::from(file), range),
            Self::Export(export, range) => (transfer::load::Source::from(export), range),
        };
        match target {
            Target::Memory(memory) => {
                let part = Part {
                    source: range.clone(),
                    memory: memory.clone(),
                    offset: 0,
                };
                loader.load(source, &[part], progress)
            }
            Target::File(out, _) => {
                let mut block = vec![0; BLOCK_BYTES];
                let mut write = |landed: Landed<'_>| {
                    // The file is new, and all of it is zeros.
                    let Landed::Frags { at, batch } = landed else {
                        return Ok(());
                    };
                    let mut at = at - range.start;
                    for_each_block(batch, bound, &mut block, |bytes| {
                        out.write_all_at(bytes, at)?;
                        at += bytes.len() as u64;
                        Ok(())
                    })
                };
                loader.deliver(source, std::slice::from_ref(range), &mut write, progress)
            }
        }
    }
}
