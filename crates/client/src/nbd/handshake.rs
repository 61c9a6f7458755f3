//! The negotiation of a connection, on host memory: a few hundred bytes. Servers have the fixed newstyle one; old ones have the newstyle one without
//! answers to options, or none, which knows one export without a name.

use std::io::Write;
use std::time::{Duration, Instant};

use devmem_tcp::text::printable;
use devmem_tcp::{RecvError, RxBatch, Stream};

use super::flags::{FIXED_NEWSTYLE, NO_ZEROES};
use crate::cause::Cause;
use crate::dial::{self, CancelCheck, SLICE};
use crate::error::LoadError;

const NBD_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Instead of it: the size follows (the section "Oldstyle negotiation").
const OLD_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Zeros after the size and the flags, unless both sides leave them out.
const ZEROES: usize = 124;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPT_EXPORT_NAME: u32 = 1;
const OPT_LIST: u32 = 3;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
/// Errors have this bit.
const REP_ERROR: u32 = 1 << 31;
const REP_ERR_UNSUP: u32 = REP_ERROR | 1;
const REP_ERR_TLS_REQD: u32 = REP_ERROR | 5;
const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
/// Longest name of an export (the section "String values").
pub(super) const MAX_NAME_BYTES: usize = 4096;
/// Longest answer to an option that is read: a name, its description and their lengths.
const MAX_ANSWER_BYTES: u32 = 64 << 10;
/// Most exports that are listed.
const MAX_EXPORTS: usize = 1000;
/// Most answers to one option.
const MAX_ANSWERS: usize = 2 * MAX_EXPORTS;
/// How long to wait for each part of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long the whole negotiation may take: one answer after the other.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(30);
/// What a server that names no sizes must support (the section "Block size constraints").
const DEFAULT_MAX_BYTES: u32 = 32 << 20;
const DEFAULT_PREFERRED: u32 = 4096;

/// What the negotiation has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) size: u64,
    /// Transmission flags.
    pub(super) flags: u16,
    /// Every offset and length must be a multiple of it.
    pub(super) min_block: u32,
    /// Requests of multiples of it are the fastest; itself a multiple of the smallest block.
    pub(super) preferred_block: u32,
    /// Longest payload of a request or a reply.
    pub(super) max_bytes: u32,
    /// Whether replies to reads are structured.
    pub(super) is_structured: bool,
}

/// A connection that negotiates.
pub(super) struct Negotiation<'a> {
    stream: &'a mut Stream,
    batch: RxBatch,
    host: &'a str,
    begun: Instant,
    style: Style,
    /// Whether zeros follow the answer to the name of an export.
    has_zeroes: bool,
    cancel_check: &'a mut CancelCheck<'a>,
}

/// How the server negotiates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Options have answers.
    FixedNewstyle,
    /// The only option is the name of the export.
    Newstyle,
    /// There is one export, of which the size comes at once.
    Old,
}

/// An answer to an option.
struct Answer {
    kind: u32,
    data: Vec<u8>,
}

impl<'a> Negotiation<'a> {
    /// Reads the greeting and answers it.
    ///
    /// # Errors
    /// The peer is no NBD server, or one with another negotiation.
    pub(super) fn begin(
        stream: &'a mut Stream,
        host: &'a str,
        cancel_check: &'a mut CancelCheck<'a>,
    ) -> Result<Self, LoadError> {
        stream.set_timeout(Some(SLICE));
        let batch = RxBatch::with_capacity(16);
        let mut negotiation = Self {
            stream,
            batch,
            host,
            begun: Instant::now(),
            style: Style::FixedNewstyle,
            has_zeroes: true,
            cancel_check,
        };
        if negotiation.u64()? != NBD_MAGIC {
            return Err(negotiation.invalid("it does not begin as an NBD server does"));
        }
        match negotiation.u64()? {
            OPTION_MAGIC => {}
            OLD_MAGIC => {
                negotiation.style = Style::Old;
                return Ok(negotiation);
            }
            _ => return Err(negotiation.invalid("it does not go on as an NBD server does")),
        }
        let flags = negotiation.u16()?;
        let ours = flags & (FIXED_NEWSTYLE | NO_ZEROES);
        if flags & FIXED_NEWSTYLE == 0 {
            negotiation.style = Style::Newstyle;
        }
        negotiation.has_zeroes = ours & NO_ZEROES == 0;
        negotiation.write(&u32::from(ours).to_be_bytes())?;
        Ok(negotiation)
    }

    /// Takes the one export of a server with the oldstyle negotiation.
    fn take_only(
        mut self,
        export: &str,
        mut negotiated: Negotiated,
    ) -> Result<Negotiated, LoadError> {
        if !export.is_empty() {
            return Err(LoadError::NbdRefused {
                host: self.host.to_owned(),
                problem: Cause::from(format!(
                    "it has the old negotiation: one export, without a name, and not {export:?}"
                ))
                .with_remedy(format!("write nbd://{}/", self.host)),
            });
        }
        negotiated.size = self.u64()?;
        let _of_handshake = self.u16()?;
        negotiated.flags = self.u16()?;
        self.read(&mut [0; ZEROES])?;
        Ok(negotiated)
    }

    /// Chooses an export. The connection is in the transmission phase afterwards.
    ///
    /// # Errors
    /// There is no such export, or the answers make no sense.
    pub(super) fn choose(mut self, export: &str) -> Result<Negotiated, LoadError> {
        let mut negotiated = Negotiated {
            size: 0,
            flags: 0,
            min_block: 1,
            preferred_block: DEFAULT_PREFERRED,
            max_bytes: DEFAULT_MAX_BYTES,
            is_structured: false,
        };
        match self.style {
            Style::FixedNewstyle => {}
            Style::Newstyle => return self.choose_by_name(export, negotiated),
            Style::Old => return self.take_only(export, negotiated),
        }
        self.option(OPT_STRUCTURED_REPLY, &[])?;
        negotiated.is_structured = self.answer(OPT_STRUCTURED_REPLY)?.kind == REP_ACK;
        self.option(OPT_GO, &go_data(export))?;
        let mut has_size = false;
        for _ in 0..MAX_ANSWERS {
            let answer = self.answer(OPT_GO)?;
            match answer.kind {
                REP_INFO => has_size |= self.take_info(&answer.data, &mut negotiated)?,
                REP_ACK if has_size => return Ok(negotiated),
                REP_ACK => return Err(self.invalid("it does not tell the size of the export")),
                REP_ERR_UNSUP => return self.choose_by_name(export, negotiated),
                kind => return Err(self.refused(kind, export, &answer.data)),
            }
        }
        Err(self.invalid("its answers do not end"))
    }

    /// Lists the names of the exports.
    ///
    /// # Errors
    /// The server lists none.
    pub(super) fn list(mut self) -> Result<Vec<String>, LoadError> {
        if self.style != Style::FixedNewstyle {
            return Err(self.invalid("it has an old negotiation, which lists no exports"));
        }
        self.option(OPT_LIST, &[])?;
        let mut names = Vec::new();
        for _ in 0..MAX_ANSWERS {
            let answer = self.answer(OPT_LIST)?;
            match answer.kind {
                REP_ACK => return Ok(names),
                REP_SERVER => {
                    let name = listed_name(&answer.data);
                    let name = name.ok_or_else(|| self.invalid("the name of an export"))?;
                    if names.len() < MAX_EXPORTS {
                        names.push(name);
                    }
                }
                kind => return Err(self.refused(kind, "", &answer.data)),
            }
        }
        Err(self.invalid("its list of exports does not end"))
    }

    /// Chooses an export of a server that does not know `NBD_OPT_GO`; without one the server ends the connection.
    fn choose_by_name(
        mut self,
        export: &str,
        mut negotiated: Negotiated,
    ) -> Result<Negotiated, LoadError> {
        self.option(OPT_EXPORT_NAME, export.as_bytes())?;
        negotiated.size = self.u64()?;
        negotiated.flags = self.u16()?;
        if self.has_zeroes {
            self.read(&mut [0; ZEROES])?;
        }
        Ok(negotiated)
    }

    /// Takes one piece of information; returns whether it has the size.
    fn take_info(&self, data: &[u8], negotiated: &mut Negotiated) -> Result<bool, LoadError> {
        let Some((kind, rest)) = data.split_first_chunk::<2>() else {
            return Err(self.invalid("an empty answer to NBD_OPT_GO"));
        };
        match (u16::from_be_bytes(*kind), rest) {
            (INFO_EXPORT, rest) => {
                let parts = rest.split_first_chunk::<8>();
                let Some((size, flags)) = parts.filter(|(_, flags)| flags.len() == 2) else {
                    return Err(self.invalid("the size of the export"));
                };
                negotiated.size = u64::from_be_bytes(*size);
                negotiated.flags = u16::from_be_bytes([flags[0], flags[1]]);
                Ok(true)
            }
            (INFO_BLOCK_SIZE, rest) => {
                let word = |at: usize| {
                    rest.get(at..at + 4)?
                        .try_into()
                        .ok()
                        .map(u32::from_be_bytes)
                };
                let sizes = word(0).zip(word(8)).filter(|(min, max)| {
                    // A read of one block must be possible.
                    rest.len() == 12 && min.is_power_of_two() && *min <= 64 << 10 && max >= min
                });
                let Some((min, max)) = sizes else {
                    return Err(self.invalid("the sizes of blocks"));
                };
                negotiated.min_block = min;
                // A hint only: one that makes no sense is ignored.
                let preferred = word(4).filter(|size| size.is_power_of_two());
                negotiated.preferred_block = preferred.map_or(min, |size| size.clamp(min, max));
                negotiated.max_bytes = max.min(DEFAULT_MAX_BYTES);
                Ok(false)
            }
            // Further information may be ignored.
            _ => Ok(false),
        }
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<(), LoadError> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(data);
        self.write(&bytes)
    }

    fn answer(&mut self, option: u32) -> Result<Answer, LoadError> {
        if self.u64()? != REPLY_MAGIC || self.u32()? != option {
            return Err(self.invalid("an answer to another option"));
        }
        let (kind, len) = (self.u32()?, self.u32()?);
        if len > MAX_ANSWER_BYTES {
            return Err(self.invalid("an answer of more than 64 KiB"));
        }
        let mut data = vec![0; len as usize];
        self.read(&mut data)?;
        Ok(Answer { kind, data })
    }

    fn invalid(&self, problem: &str) -> LoadError {
        LoadError::Invalid {
            host: self.host.to_owned(),
            problem: problem.into(),
        }
    }

    fn refused(&self, kind: u32, export: &str, text: &[u8]) -> LoadError {
        let message = printable(&String::from_utf8_lossy(text));
        let problem = match kind {
            REP_ERR_UNKNOWN => format!("there is no export {export:?}"),
            REP_ERR_TLS_REQD => "it requires TLS, whose bytes the CPU must decrypt".to_owned(),
            kind => format!("NBD error {}", kind & !REP_ERROR),
        };
        LoadError::NbdRefused {
            host: self.host.to_owned(),
            problem: match message.is_empty() {
                true => problem,
                false => format!("{problem} ({message})"),
            }
            .into(),
        }
    }

    fn u16(&mut self) -> Result<u16, LoadError> {
        let mut bytes = [0; 2];
        self.read(&mut bytes).map(|()| u16::from_be_bytes(bytes))
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        let mut bytes = [0; 4];
        self.read(&mut bytes).map(|()| u32::from_be_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, LoadError> {
        let mut bytes = [0; 8];
        self.read(&mut bytes).map(|()| u64::from_be_bytes(bytes))
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), LoadError> {
        let mut filled = 0;
        let start = Instant::now();
        while filled < out.len() {
            dial::check_cancelled(self.cancel_check)?;
            // Also of a server that sends a byte now and then.
            if start.elapsed() >= ANSWER_LIMIT || self.begun.elapsed() >= NEGOTIATION_LIMIT {
                return Err(self.broken("the server does not answer in time"));
            }
            let most = out.len() - filled;
            match self.stream.recv_at_most(&mut self.batch, most) {
                Ok(0) => return Err(self.broken("the server closed the connection")),
                Ok(_) => {
                    let copied = self.batch.copy_to(&mut out[filled..]);
                    filled += copied.map_err(LoadError::Gather)?;
                }
                Err(RecvError::TimedOut { .. }) => {}
                Err(RecvError::Failed(error)) => return Err(self.broken(Cause::of(&error))),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        let written = self.stream.write_all(bytes);
        written.map_err(|error| self.broken(Cause::of_io(error)))
    }

    fn broken(&self, problem: impl Into<Cause>) -> LoadError {
        LoadError::Broken {
            host: self.host.to_owned(),
            problem: problem.into(),
        }
    }
}

/// Returns the data of `NBD_OPT_GO` that also asks for the sizes of blocks.
fn go_data(export: &str) -> Vec<u8> {
    let len = u32::try_from(export.len()).unwrap_or(u32::MAX);
    let mut data = len.to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    data
}

/// Returns the name in an answer to `NBD_OPT_LIST`; a description may follow it.
fn listed_name(data: &[u8]) -> Option<String> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let name = rest
        .get(..len)
        .filter(|name| name.len() <= MAX_NAME_BYTES)?;
    String::from_utf8(name.to_vec()).ok()
}
