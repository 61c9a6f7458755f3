//! The flags of ncdevmem, parsed like getopt(3), and the resulting mode.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use devmem_uapi::IfIndex;

use tool::output::{Failure, say};

pub const HELP: &str = "\
ncdevmem: receive into device memory, or send from it, through the kernel

  server   ncdevmem -s ADDRESS -p PORT -f IFNAME -l [-c PEER] [-v N] [-t QUEUE -q COUNT] [-n] [-L] [-b BYTES]
  client   ncdevmem -s ADDRESS -p PORT -f IFNAME [-c ADDRESS] [-z BYTES]       lines from stdin
  probe    ncdevmem -f IFNAME [-t QUEUE -q COUNT] [-b BYTES]      tests binding, and that invalid requests are refused

  -f IFNAME    the NIC
  -s ADDRESS   the server's address, IPv4 or IPv6
  -p PORT      the server's port
  -l           run as the server
  -c ADDRESS   the client's address: the server's flow rule matches only this address and the same port
  -v N         check that the stream repeats the bytes 1 to N-1 and newline; without -v, payload goes to stdout
  -t QUEUE     first RX queue to bind
  -q COUNT     number of RX queues to bind; without -t and -q, the last queue (probe: the upper half)
  -z BYTES     send in chunks of BYTES bytes
  -n           do not change the NIC, which is already set up
  -L           fail if payload lands in host memory
  -b BYTES     size of one net_iov: a power of two, 4096 to 2 MiB; needs Linux 7.3
  -h           print this text

The settings of the NIC are restored at the end; after a crash, `devmem-tcp restore` restores them.
";

/// Flags without a value, and flags with one.
const PLAIN: &str = "lLnh";
const WITH_VALUE: &str = "fspcvtqzb";
/// Largest `-b`, in bytes: the size of the pieces of a udmabuf of huge pages.
const RX_PAGE_SIZE_MAX: u32 = 2 << 20;

/// More queues than any NIC has.
const QUEUES_MAX: u32 = 1 << 16;

/// The flags as given.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flags {
    interface: Option<String>,
    server: Option<IpAddr>,
    client: Option<IpAddr>,
    port: Option<u16>,
    listen: bool,
    validate: Option<u16>,
    first_queue: Option<u32>,
    queue_count: Option<u32>,
    chunk: Option<usize>,
    prepared: bool,
    fail_on_linear: bool,
    rx_page_size: Option<u32>,
    pub help: bool,
}

/// The mode to run in.
#[derive(Debug, PartialEq, Eq)]
pub enum NcdevmemPlan {
    Probe(ProbePlan),
    Server(ServerPlan),
    Client(ClientPlan),
}

/// The queues to bind, and options of the binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindPlan {
    pub first_queue: u32,
    pub queue_count: u32,
    pub rx_page_size: Option<u32>,
    /// The NIC is already set up.
    pub prepared: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct ProbePlan {
    pub binding: BindPlan,
}

#[derive(Debug, PartialEq, Eq)]
pub struct ServerPlan {
    pub binding: BindPlan,
    pub local: SocketAddr,
    /// The address of the client, which connects from the same port.
    pub peer: Option<IpAddr>,
    /// The period of the pattern to check.
    pub validate: Option<u16>,
    pub fail_on_linear: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct ClientPlan {
    pub to: SocketAddr,
    pub from: Option<SocketAddr>,
    /// Bytes of one iovec.
    pub chunk: Option<usize>,
}

impl Flags {
    /// Parses the flags. Other words are reported and ignored.
    ///
    /// # Errors
    ///
    /// An unknown flag, a missing value, or an invalid value.
    pub fn parse(words: Vec<OsString>) -> Result<Self, Failure> {
        let mut flags = Self::default();
        let mut words = words.into_iter().map(|word| {
            let refused =
                |word: OsString| Failure::failed(format!("{} is not text", word.display()));
            word.into_string().map_err(refused)
        });
        while let Some(word) = words.next().transpose()? {
            let Some(mut letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                say!("extra arguments: {word}");
                continue;
            };
            while let Some(letter) = letters.chars().next() {
                letters = &letters[letter.len_utf8()..];
                if PLAIN.contains(letter) {
                    flags.plain(letter);
                } else if WITH_VALUE.contains(letter) {
                    let value = match letters {
                        "" => words.next().transpose()?.ok_or_else(|| {
                            Failure::failed(format!("option requires an argument -- '{letter}'"))
                        })?,
                        rest => rest.to_owned(),
                    };
                    flags.with_value(letter, &value)?;
                    break;
                } else {
                    return Err(Failure::failed(format!("unknown option: {letter}"))
                        .with_remedy("`ncdevmem -h` has the list"));
                }
            }
        }
        Ok(flags)
    }

    fn plain(&mut self, letter: char) {
        match letter {
            'l' => self.listen = true,
            'L' => self.fail_on_linear = true,
            'n' => self.prepared = true,
            _ => self.help = true,
        }
    }

    fn with_value(&mut self, letter: char, value: &str) -> Result<(), Failure> {
        match letter {
            'f' => self.interface = Some(value.to_owned()),
            's' => self.server = Some(parsed(letter, value, "an address")?),
            'c' => self.client = Some(parsed(letter, value, "an address")?),
            'p' => self.port = Some(parsed(letter, value, "a port")?),
            'v' => self.validate = period(value)?,
            't' => self.first_queue = Some(parsed(letter, value, "a queue")?),
            'q' => self.queue_count = Some(parsed(letter, value, "a number of queues")?),
            'z' => {
                let bytes: usize = parsed(letter, value, "a number of bytes")?;
                self.chunk = Some(bytes).filter(|&bytes| bytes != 0);
            }
            _ => self.rx_page_size = page_size(value)?,
        }
        Ok(())
    }

    /// Returns the interface.
    ///
    /// # Errors
    ///
    /// If `-f` is missing.
    pub fn interface(&self) -> Result<&str, Failure> {
        let name = self.interface.as_deref();
        name.ok_or_else(|| Failure::failed("Missing -f argument"))
    }

    /// Returns the mode to run in. `queues` is the number of the NIC's RX queues, used where needed.
    ///
    /// # Errors
    ///
    /// If a flag is missing, or a value is invalid for this NIC.
    pub fn judge(
        self,
        index: IfIndex,
        queues: impl FnOnce() -> Result<u32, Failure>,
    ) -> Result<NcdevmemPlan, Failure> {
        let missing = |flag| Failure::failed(format!("Missing -{flag} argument"));
        if self.server.is_none() && self.client.is_none() {
            let binding = self.binding(queues, |count| (count / 2, count / 2))?;
            let binding = binding.ok_or_else(|| Failure::failed("Both -t and -q are required"))?;
            return Ok(NcdevmemPlan::Probe(ProbePlan { binding }));
        }
        let server = self.server.ok_or_else(|| missing('s'))?;
        let port = self.port.ok_or_else(|| missing('p'))?;
        let address = |ip| socket_address(ip, port, index);
        if !self.listen {
            return Ok(NcdevmemPlan::Client(ClientPlan {
                to: address(server),
                from: self.client.map(address),
                chunk: self.chunk,
            }));
        }
        let binding = self.binding(queues, |count| (count - 1, 1))?;
        let binding =
            binding.ok_or_else(|| missing(if self.first_queue.is_none() { 't' } else { 'q' }))?;
        if self.first_queue.is_none() {
            let end = binding.first_queue + binding.queue_count;
            say!("using queues {}..{end}", binding.first_queue);
        }
        Ok(NcdevmemPlan::Server(ServerPlan {
            binding,
            local: address(server),
            peer: self.client.map(|ip| ip.to_canonical()),
            validate: self.validate,
            fail_on_linear: self.fail_on_linear,
        }))
    }

    /// Returns the queues, those of `choice` if none were given; `None` if only one of `-t` and `-q` was given.
    fn binding(
        &self,
        queues: impl FnOnce() -> Result<u32, Failure>,
        choice: impl FnOnce(u32) -> (u32, u32),
    ) -> Result<Option<BindPlan>, Failure> {
        let (first_queue, queue_count) = match (self.first_queue, self.queue_count) {
            (Some(first), Some(count)) => (first, count),
            (None, None) => match queues()? {
                0 | 1 => return Err(Failure::failed("number of device queues is too low")),
                count => choice(count),
            },
            _ => return Ok(None),
        };
        let end = first_queue.checked_add(queue_count);
        if queue_count == 0 || end.is_none_or(|end| end > QUEUES_MAX) {
            return Err(Failure::failed(format!(
                "-t {first_queue} -q {queue_count}: there are no such queues"
            )));
        }
        Ok(Some(BindPlan {
            first_queue,
            queue_count,
            rx_page_size: self.rx_page_size,
            prepared: self.prepared,
        }))
    }
}

fn parsed<T: FromStr>(letter: char, value: &str, what: &str) -> Result<T, Failure> {
    value
        .parse()
        .map_err(|_| Failure::failed(format!("-{letter} {value}: not {what}")))
}

/// Parses `-v`: 0 turns the check off; a pattern has at most 256 bytes.
fn period(value: &str) -> Result<Option<u16>, Failure> {
    let number: u64 = parsed('v', value, "a number")?;
    match number {
        0 => Ok(None),
        1 => Err(Failure::failed("-v 1: a pattern has at least 2 bytes")),
        number => Ok(Some(u16::try_from(number).unwrap_or(256).min(256))),
    }
}

/// Parses `-b`, decimal, or hexadecimal and octal as in C; 0 selects the default.
fn page_size(value: &str) -> Result<Option<u32>, Failure> {
    let (digits, radix) = match value.strip_prefix("0x").or(value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if value.starts_with('0') => (value, 8),
        None => (value, 10),
    };
    let bytes = u32::from_str_radix(digits, radix)
        .map_err(|_| Failure::failed(format!("invalid rx_page_size: {value}")))?;
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    if bytes == 0 {
        Ok(None)
    } else if !bytes.is_power_of_two() {
        Err(Failure::failed("rx_page_size must be a power of 2"))
    } else if bytes < page {
        Err(Failure::failed(format!(
            "rx_page_size must be >= PAGE_SIZE ({page})"
        )))
    } else if bytes > RX_PAGE_SIZE_MAX {
        Err(Failure::failed("rx_page_size > 2 MB not supported"))
    } else {
        Ok(Some(bytes))
    }
}

/// Adds the scope to a link-local address, which is valid only on one interface.
fn socket_address(ip: IpAddr, port: u16, index: IfIndex) -> SocketAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, port, 0, index.0).into()
        }
        ip => SocketAddr::new(ip, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        Flags::parse(words).map_err(|failure| failure.to_string())
    }

    fn judge(line: &str, queues: u32) -> Result<NcdevmemPlan, String> {
        let flags = parse(line)?;
        let job = flags.judge(IfIndex(7), || Ok(queues));
        job.map_err(|failure| failure.to_string())
    }

    fn binding(first_queue: u32, queue_count: u32) -> BindPlan {
        BindPlan {
            first_queue,
            queue_count,
            rx_page_size: None,
            prepared: false,
        }
    }

    #[test]
    fn flags_are_parsed_as_by_getopt() {
        let expected = parse("-l -s 192.0.2.1 -p 5201 -f eth1 -v 7 -L").unwrap();
        assert_eq!(parse("-Llfeth1 -s192.0.2.1 -p5201 -v7").unwrap(), expected);
        assert_eq!(
            parse("-p 5201 words -f eth1 -L aside -s 192.0.2.1 -lv 7").unwrap(),
            expected
        );
    }

    #[test]
    fn command_lines_of_the_selftests_are_accepted() {
        let server = judge("-l -f eth1 -s 192.0.2.1 -p 4000 -c 192.0.2.9 -v 7", 16);
        let NcdevmemPlan::Server(server) = server.unwrap() else {
            panic!("it is a server")
        };
        assert_eq!(server.binding, binding(15, 1));
        assert_eq!(server.peer, Some("192.0.2.9".parse().unwrap()));
        assert_eq!(server.validate, Some(7));

        let leased = judge("-l -f nk -s fd00::1 -p 4000 -t 1 -q 1 -n -L -b 16384", 0);
        let NcdevmemPlan::Server(leased) = leased.unwrap() else {
            panic!("it is a server")
        };
        let expected = BindPlan {
            rx_page_size: Some(16384),
            prepared: true,
            ..binding(1, 1)
        };
        assert_eq!((leased.binding, leased.fail_on_linear), (expected, true));

        // A client needs no queue.
        let client = judge("-f eth1 -s 192.0.2.1 -p 4000 -z 3", 0).unwrap();
        let expected = ClientPlan {
            to: "192.0.2.1:4000".parse().unwrap(),
            from: None,
            chunk: Some(3),
        };
        assert_eq!(client, NcdevmemPlan::Client(expected));

        let probe = judge("-f eth1", 9).unwrap();
        let expected = ProbePlan {
            binding: binding(4, 4),
        };
        assert_eq!(probe, NcdevmemPlan::Probe(expected));
    }

    #[test]
    fn page_sizes_are_written_as_in_c_and_0_asks_for_none() {
        let sizes = ["0", "16384", "0x4000", "0X4000", "040000"].map(|text| page_size(text).ok());
        let large = Some(Some(16384));
        assert_eq!(sizes, [Some(None), large, large, large, large]);
    }

    #[test]
    fn mapped_and_link_local_addresses_are_converted() {
        let to = |line: &str| match judge(line, 0).unwrap() {
            NcdevmemPlan::Client(plan) => plan.to.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(to("-f eth1 -s ::ffff:192.0.2.1 -p 9"), "192.0.2.1:9");
        assert_eq!(to("-f eth1 -s fe80::1 -p 9"), "[fe80::1%7]:9");
    }

    #[test]
    fn missing_and_invalid_flags_have_the_messages_of_the_selftests() {
        let cases = [
            ("-f eth1 -t 1", "Both -t and -q are required"),
            ("-f eth1 -q 1", "Both -t and -q are required"),
            ("-f eth1 -l -s 192.0.2.1 -p 9 -q 1", "Missing -t argument"),
            ("-f eth1 -l -s 192.0.2.1 -p 9 -t 1", "Missing -q argument"),
            ("-f eth1 -c 192.0.2.1 -p 9", "Missing -s argument"),
            ("-f eth1 -l -s 192.0.2.1", "Missing -p argument"),
            (
                "-f eth1 -l -s 192.0.2.1 -p 9",
                "number of device queues is too low",
            ),
            ("-f eth1", "number of device queues is too low"),
            ("-f eth1 -t 1 -q 0", "there are no such queues"),
            ("-f eth1 -t 4294967295 -q 1", "there are no such queues"),
            ("-f eth1 -t 1 -q 4000000000", "there are no such queues"),
            ("-x", "unknown option: x"),
            ("-f eth1 -p", "option requires an argument -- 'p'"),
            ("-s somewhere", "-s somewhere: not an address"),
            ("-p 70000", "-p 70000: not a port"),
            ("-t -1", "-t -1: not a queue"),
            ("-v 1", "a pattern has at least 2 bytes"),
            ("-b 08", "invalid rx_page_size: 08"),
            ("-b -4096", "invalid rx_page_size: -4096"),
            ("-b 16k", "invalid rx_page_size: 16k"),
            ("-b 12288", "rx_page_size must be a power of 2"),
            ("-b 2048", "rx_page_size must be >= PAGE_SIZE"),
            ("-b 4194304", "rx_page_size > 2 MB not supported"),
        ];
        for (line, text) in cases {
            let error = judge(line, 1).expect_err(line);
            assert!(error.contains(text), "{line}: {error}");
        }
        let unnamed = parse("-l").unwrap();
        let error = unnamed.interface().unwrap_err().to_string();
        assert_eq!(error, "Missing -f argument");
    }
}
