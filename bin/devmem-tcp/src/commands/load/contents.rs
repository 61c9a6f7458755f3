//! What `load` loads: a range of a file or of an export, or the tensors of a checkpoint.

use std::net::SocketAddr;
use std::ops::{ControlFlow, Range};

use super::target::Target;
use crate::load_failure::load_failure;
use crate::plan::LoadJob;
use crate::report::TensorRow;
use tool::output::Failure;
use tool::signals::StopFlag;
use transfer::load::{
    Checkpoint, CheckpointError, ComparedFile, FileVersion, HttpRequest, LoadError, Loaded, Loader,
    NoSum, Origin, Part, Progress, Source, StoredSum,
};

/// What is loaded.
pub enum Contents {
    /// A range of a file or of an export.
    Range(Source, Range<u64>),
    /// All tensors of a checkpoint.
    Checkpoint(Checkpoint, String),
}

/// The checksums that servers have of what was loaded.
pub enum ServerSums {
    /// Of one file, as it is.
    File(Result<StoredSum, NoSum>),
    /// Of the files of a checkpoint, compared.
    Files(Vec<ComparedFile>),
}

impl Contents {
    pub fn open(job: &LoadJob, loader: &Loader, stop: &StopFlag) -> Result<Self, Failure> {
        if let Some(request) = job.checkpoint() {
            return Self::checkpoint(loader, request.clone(), stop);
        }
        let source = loader.open(&job.origin, &mut || stop.control_flow());
        let source = source.map_err(|error| load_failure(error, &job.origin, stop))?;
        let range = match (&job.range, source.size()) {
            (Some(range), _) => range.clone(),
            (None, Some(size)) => 0..size,
            (None, None) => {
                let text = "the server does not tell the size of the file";
                let remedy = "name it with --range 0-SIZE";
                return Err(Failure::failed(text).with_remedy(remedy));
            }
        };
        Ok(Self::Range(source, range))
    }

    fn checkpoint(loader: &Loader, request: HttpRequest, stop: &StopFlag) -> Result<Self, Failure> {
        let name = request.url().to_string();
        match Checkpoint::open_cancellable(loader, request.clone(), &mut || stop.control_flow()) {
            Ok(checkpoint) => Ok(Self::Checkpoint(checkpoint, name)),
            Err(CheckpointError::Load(error)) => {
                Err(load_failure(error, &Origin::Http(request), stop))
            }
            // One that has its own remedy keeps it.
            Err(error @ CheckpointError::Header { .. }) if error.remedy().is_none() => {
                let failure = Failure::from(error);
                Err(failure.with_remedy("--to FILE loads a file of any format"))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Range(source, _) => source.url(),
            Self::Checkpoint(_, name) => name.clone(),
        }
    }

    /// Returns the addresses of the servers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Range(source, _) => source.addresses().to_vec(),
            Self::Checkpoint(checkpoint, _) => checkpoint.addresses(),
        }
    }

    /// Returns the number of bytes to load.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Range(_, range) => range.end - range.start,
            Self::Checkpoint(checkpoint, _) => checkpoint.tensor_bytes(),
        }
    }

    /// Returns the number of bytes of the target: with the gaps between tensors.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Range(..) => self.bytes(),
            Self::Checkpoint(checkpoint, _) => checkpoint.memory_bytes() as u64,
        }
    }

    pub fn tensors(&self) -> Option<Vec<TensorRow>> {
        match self {
            Self::Range(..) => None,
            Self::Checkpoint(checkpoint, _) => {
                Some(checkpoint.tensors().iter().map(TensorRow::from).collect())
            }
        }
    }

    /// Returns whether the CPU decrypts the bytes in host memory.
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::Range(source, _) => source.is_encrypted(),
            Self::Checkpoint(checkpoint, _) => checkpoint.is_encrypted(),
        }
    }

    pub fn serves_ranges(&self) -> bool {
        match self {
            Self::Range(source, _) => source.serves_ranges(),
            Self::Checkpoint(checkpoint, _) => checkpoint.serves_ranges(),
        }
    }

    /// Returns what the loaded range is recognised by when a load is gone on with.
    pub fn version(&self) -> Option<FileVersion> {
        match self {
            Self::Range(source, range) => Some(source.version(range.clone())),
            Self::Checkpoint(..) => None,
        }
    }

    /// Returns the checksums that the servers have of the loaded files. Those of a checkpoint in `target` are compared at once.
    pub fn server_sums(
        &self,
        loader: &Loader,
        target: &Target,
        stop: &StopFlag,
    ) -> Result<ServerSums, Failure> {
        let cancel_check = &mut || stop.control_flow();
        match self {
            // It is of the whole file.
            Self::Range(source, range) if source.size() == Some(range.end - range.start) => {
                Ok(ServerSums::File(loader.stored_sum(source, cancel_check)?))
            }
            Self::Range(..) => Ok(ServerSums::File(Err(NoSum::NotAll))),
            Self::Checkpoint(checkpoint, _) => {
                let memory = target.memory().expect("files are loaded as they are");
                Ok(ServerSums::Files(checkpoint.compare(
                    loader,
                    memory,
                    cancel_check,
                )?))
            }
        }
    }

    pub fn load(
        &self,
        loader: &Loader,
        target: &mut Target,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        match (self, target) {
            (Self::Checkpoint(checkpoint, _), target) => {
                let memory = target.memory().expect("files are loaded as they are");
                checkpoint.load(loader, memory, progress)
            }
            (Self::Range(source, range), Target::Memory(memory, _)) => {
                let part = Part {
                    source: range.clone(),
                    memory: memory.clone(),
                    offset: 0,
                };
                loader.load(source.clone(), &[part], progress)
            }
            (Self::Range(source, _), Target::File(file)) => {
                loader.load_partial(source.clone(), file, progress)
            }
        }
    }
}
