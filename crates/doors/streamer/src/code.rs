//! Answers of the streamer (cpp/common/response_code of run-ai/runai-model-streamer).

use std::ffi::{CStr, c_int};

/// The outcome of a call, or of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Success = 0,
    /// Nothing more will be answered.
    Finished = 1,
    FileAccess = 2,
    /// The file ends before the range does.
    EndOfFile = 3,
    S3NotSupported = 4,
    InvalidParameter = 7,
    /// Another request is not answered yet.
    Busy = 9,
    Unknown = 11,
    GcsNotSupported = 13,
    AzureNotSupported = 14,
    TimedOut = 16,
    CredentialsDiffer = 18,
    StrategyDiffers = 20,
    DeviceNotSupported = 23,
}

impl Code {
    pub(crate) fn number(self) -> c_int {
        self as c_int
    }

    fn text(self) -> &'static CStr {
        match self {
            Self::Success => c"success",
            Self::Finished => c"all ranges were answered, or the streamer was ended",
            Self::FileAccess => c"the file cannot be read; standard error has the cause",
            Self::EndOfFile => c"the file ends before the range",
            Self::S3NotSupported => {
                c"objects of S3 are read, and not listed: install runai-model-streamer-s3, which lists them"
            }
            Self::InvalidParameter => c"an argument is invalid",
            Self::Busy => c"another request is not answered yet",
            Self::Unknown => c"an error in the streamer; standard error has the cause",
            Self::GcsNotSupported => c"gs:// is not supported: use the S3 interface of the store",
            Self::AzureNotSupported => c"az:// is not supported",
            Self::TimedOut => c"no range was answered in time",
            Self::CredentialsDiffer => {
                c"the streamer has other credentials: start another one for these"
            }
            Self::StrategyDiffers => c"the streamer has another strategy: start another one",
            Self::DeviceNotSupported => c"only host memory is filled",
        }
    }
}

const ALL: [Code; 14] = [
    Code::Success,
    Code::Finished,
    Code::FileAccess,
    Code::EndOfFile,
    Code::S3NotSupported,
    Code::InvalidParameter,
    Code::Busy,
    Code::Unknown,
    Code::GcsNotSupported,
    Code::AzureNotSupported,
    Code::TimedOut,
    Code::CredentialsDiffer,
    Code::StrategyDiffers,
    Code::DeviceNotSupported,
];

/// Returns the text for a number.
pub(crate) fn text_of(number: c_int) -> &'static CStr {
    let found = ALL.iter().find(|code| code.number() == number);
    found.map_or(c"there is no such code", |code| code.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_text() {
        assert_eq!(text_of(0), c"success");
        assert_eq!(text_of(16), Code::TimedOut.text());
        assert_eq!(text_of(-1), text_of(99));
    }
}
