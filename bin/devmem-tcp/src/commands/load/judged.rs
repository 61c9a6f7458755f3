//! Checksums of what was loaded, and whether they are those that the server has.

use super::LoadedTarget;
use super::contents::ServerSums;
use crate::args::ChecksumKind;
use crate::report::{FileSum, ServerSum, checksum_on};
use tool::output::Failure;
use transfer::load::{NoSum, SumKind, SumValue, Xxh3};

impl LoadedTarget {
    /// Computes the checksum that was asked for. With a CRC-32C goes the one that the server has of the file, of whatever kind.
    ///
    /// # Errors
    ///
    /// The target cannot be read, or the device fails.
    pub fn add_checksum(&mut self, kind: ChecksumKind) -> Result<(), Failure> {
        match kind {
            ChecksumKind::Crc32c => {
                let crc32c = self.add_crc32c()?;
                self.add_server_sum(&crc32c)
            }
            ChecksumKind::Xxh3 => self.add_xxh3(),
        }
    }

    fn add_crc32c(&mut self) -> Result<SumValue, Failure> {
        let (sum, device) = self.target.sum(SumKind::Crc32c, 0..self.size)?;
        self.report.crc32c = Some(sum.to_string());
        let is_on_cpu = device.is_none();
        self.report.checksum_reason = is_on_cpu.then(|| self.target.why_cpu());
        self.report.checksum_on = Some(checksum_on(device));
        Ok(sum)
    }

    /// Compares with the server's checksum; `crc32c` is that of all bytes.
    fn add_server_sum(&mut self, crc32c: &SumValue) -> Result<(), Failure> {
        let stored = match &self.server {
            ServerSums::Files(compared) => {
                self.report.files = Some(compared.iter().map(FileSum::from).collect());
                return Ok(());
            }
            ServerSums::File(Ok(stored)) => stored,
            ServerSums::File(Err(NoSum::None)) => return Ok(()),
            ServerSums::File(Err(why)) => {
                self.report.not_compared = Some(why.to_string());
                return Ok(());
            }
        };
        let kind = stored.kind();
        let is_known = kind == SumKind::Crc32c && stored.parts() == 0;
        let compared = stored.compare(self.size, |range| match is_known {
            true => Ok(crc32c.clone()),
            false => self.target.sum(kind, range).map(|(sum, _)| sum),
        })?;
        self.report.crc32c_matches = is_known.then(|| compared.is_equal());
        self.report.server_checksum = Some(ServerSum::from(&compared));
        Ok(())
    }

    fn add_xxh3(&mut self) -> Result<(), Failure> {
        let mut sum = Xxh3::default();
        self.target
            .read_back(0..self.size, |bytes| sum.add(bytes))?;
        self.report.checksum_reason = Some("XXH3 is one sequential chain");
        self.report.checksum_on = Some(checksum_on(None));
        self.report.xxh3 = Some(format!("{:016x}", sum.value()));
        Ok(())
    }
}
