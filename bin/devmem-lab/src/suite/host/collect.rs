//! Collects what a guest prints while its rows run.

use std::io;

use lab::pass_on::{Output, PassOn};

use super::far_end::FarEnd;
use crate::suite::report::{Line, RowReport};

/// Maximum number of characters of a row's detail.
const DETAIL_CHARS_MAX: usize = 4096;

/// Collects the reports of rows. Its memory is limited for any output of the guest: one line, and one report for each
/// requested row.
#[derive(Debug)]
pub struct Collector {
    line: Vec<u8>,
    pub rows: Vec<RowReport>,
    pub far_end: Option<FarEnd>,
    /// Number of the guest, if there are two.
    guest: Option<u8>,
    /// Rows that have not been reported yet.
    wanted: Vec<&'static str>,
    /// Called with each row.
    show: fn(&RowReport),
    passed_on: PassOn,
}

impl Collector {
    pub fn new(
        wanted: Vec<&'static str>,
        far_end: Option<FarEnd>,
        guest: Option<u8>,
        show: fn(&RowReport),
    ) -> Self {
        Self {
            line: Vec::new(),
            rows: Vec::new(),
            far_end,
            guest,
            wanted,
            show,
            passed_on: PassOn::default(),
        }
    }

    fn take(&mut self, line: Line) -> io::Result<()> {
        match (line, &mut self.far_end) {
            (Line::Row(row), _) => {
                let row = self.checked(row)?;
                (self.show)(&row);
                self.rows.push(row);
            }
            (Line::FarEndRequest { far_end: request }, Some(far_end)) => {
                far_end
                    .start(request)
                    .map_err(|failure| io::Error::other(failure.to_string()))?;
            }
            (Line::FarEndRequest { .. }, None) => {
                return Err(io::Error::other(
                    "the guest requested our stack, but has a peer",
                ));
            }
        }
        Ok(())
    }

    /// Checks that the row was requested and not reported yet. Returns the report with a truncated detail without control
    /// characters, and the guest in its name.
    fn checked(&mut self, mut row: RowReport) -> io::Result<RowReport> {
        let at = self.wanted.iter().position(|name| *name == row.row);
        let at = at.ok_or_else(|| {
            io::Error::other(
                "the guest reported a row that was not requested, or reported one twice",
            )
        })?;
        self.wanted.swap_remove(at);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        row.row = guest_row(&row.row, self.guest);
        row.detail = row
            .detail
            .chars()
            .take(DETAIL_CHARS_MAX)
            .map(plain)
            .collect();
        Ok(row)
    }
}

/// Returns the name of a row that runs in each of two guests, or in the only one.
pub fn guest_row(name: &str, guest: Option<u8>) -> String {
    match guest {
        None => name.to_owned(),
        Some(guest) => format!("{name}, guest {guest}"),
    }
}

/// Reads one line of a guest.
fn parse_line(line: &[u8]) -> io::Result<Line> {
    serde_json::from_slice(line).map_err(|error| {
        io::Error::other(format!(
            "the guest printed neither a row nor a valid request: {error}"
        ))
    })
}

impl Output for Collector {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        /// More than the length of any report.
        const MAX_LINE_BYTES: usize = 1 << 20;
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    self.take(parse_line(&line)?)?;
                }
                _ if self.line.len() < MAX_LINE_BYTES => self.line.push(*byte),
                _ => return Err(io::Error::other("the report of a row is too long")),
            }
        }
        Ok(())
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.passed_on.stderr(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::suite::host::group::{failed_row, missing_rows};

    fn collector(wanted: &[&'static str]) -> Collector {
        let far_end = FarEnd::new(Path::new("/tool"), Path::new("/nowhere"), 1, 0);
        Collector::new(wanted.to_vec(), Some(far_end), None, |_| {})
    }

    fn line(row: &RowReport) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(row).unwrap();
        bytes.push(b'\n');
        bytes
    }

    #[test]
    fn rows_are_collected_from_pieces_of_any_size() {
        let mut collector = collector(&["a", "c"]);
        let (first, second) = (line(&failed_row("c", "d")), line(&failed_row("a", "b")));
        for byte in first.iter().chain(&second) {
            collector.stdout(&[*byte]).unwrap();
        }
        assert_eq!(collector.rows.len(), 2);
        assert_eq!(collector.rows[1].row, "a");
        assert!(collector.stdout(b"no json\n").is_err());
    }

    #[test]
    fn a_guest_cannot_choose_arguments_of_the_hosts_programs() {
        for request in [
            &br#"{"far_end":["send","10.77.0.2","9","--capture","/tmp/file"]}"#[..],
            br#"{"far_end":{"send":{"port":0}}}"#,
            br#"{"far_end":{"send":{"port":9,"bytes":1}}}"#,
            br#"{"far_end":"demo"}"#,
            br#"{"far_end":{"receive":["--out","/tmp/file"]}}"#,
        ] {
            let refused = collector(&[]).stdout(&[request, b"\n"].concat());
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("neither a row nor a valid request"), "{said}");
        }
        for request in [
            &br#"{"far_end":"receive"}"#[..],
            br#"{"far_end":{"send":{"port":9}}}"#,
        ] {
            assert!(matches!(
                parse_line(request),
                Ok(Line::FarEndRequest { .. })
            ));
        }
    }

    #[test]
    fn a_guest_can_report_only_requested_rows_and_each_once() {
        let mut collector = collector(&["a"]);
        assert!(collector.stdout(&line(&failed_row("b", ""))).is_err());
        assert!(collector.stdout(&line(&failed_row("a", ""))).is_ok());
        assert!(collector.stdout(&line(&failed_row("a", ""))).is_err());
        assert_eq!(collector.rows.len(), 1);
    }

    #[test]
    fn a_row_of_two_guests_names_its_guest() {
        let mut second = Collector::new(vec!["a"], None, Some(1), |_| {});
        second.stdout(&line(&failed_row("a", ""))).unwrap();
        assert_eq!(second.rows[0].row, "a, guest 1");
        let wanted = ["a, guest 0", "a, guest 1"];
        let missing = missing_rows(&wanted, &second.rows, "no boot");
        assert_eq!(missing.len(), 1);
        assert_eq!(
            (&*missing[0].row, &*missing[0].detail),
            ("a, guest 0", "no boot")
        );
    }

    #[test]
    fn the_detail_of_a_row_is_truncated_and_has_no_control_characters() {
        let mut collector = collector(&["a"]);
        let long = format!("\u{1b}[2J{}", "x".repeat(100_000));
        collector.stdout(&line(&failed_row("a", &long))).unwrap();
        let kept = &collector.rows[0].detail;
        assert_eq!(kept.chars().count(), DETAIL_CHARS_MAX);
        assert!(kept.starts_with(" [2Jx"), "{}", &kept[..8]);
    }
}
