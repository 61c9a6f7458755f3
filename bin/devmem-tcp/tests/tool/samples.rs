//! The samples of output in README and the book have the words that the tool prints; figures may differ.

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use devmem_linux::test_util::{in_netns, skip, wait_or_kill};
use tool::stock;

use crate::common::{Finished, LIMIT, connect, has_tap, recv_addr, repeating, run, start_recv};

/// What a block of text in a document shows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    /// All that `devmem-tcp demo` prints.
    Demo,
    /// Some lines of that.
    PartOfDemo,
    /// All that `recv` prints when it checks the stream of the kernel's selftest.
    Receive,
    /// All that `load` prints about a file with tensors from Python's server.
    Load,
    /// Nothing that a run of the tool prints: a drawing, a command line, the live view, which needs a terminal (the test
    /// `watch` runs it), or the output of a program in Python (its package's tests compare it).
    Other,
}

/// All blocks of text: the document, how the first line of the block begins, what it shows.
const BLOCKS: [(&str, &str, Shown); 9] = [
    ("README.md", "received  5 GiB", Shown::Demo),
    ("docs/src/tutorial.md", "frags", Shown::PartOfDemo),
    ("docs/src/guides/exchange.md", "process A", Shown::Other),
    (
        "docs/src/guides/load.md",
        "devmem-tcp: loading",
        Shown::Load,
    ),
    (
        "docs/src/guides/python.md",
        "4194304 bytes from",
        Shown::Other,
    ),
    (
        "docs/src/guides/shards.md",
        "devmem-tcp recv --link",
        Shown::Other,
    ),
    ("docs/src/guides/transfer.md", "nc  <->", Shown::Other),
    (
        "docs/src/guides/transfer.md",
        "devmem-tcp: listening",
        Shown::Receive,
    ),
    (
        "docs/src/guides/transfer.md",
        "devmem-tcp demo  into",
        Shown::Other,
    ),
];

/// A block of text in a document.
#[derive(Debug)]
struct Block {
    document: String,
    line: usize,
    lines: Vec<String>,
}

impl Block {
    /// Returns what [`BLOCKS`] says about it.
    fn shown(&self) -> Option<Shown> {
        let first = self.lines.first()?.trim_start();
        let is_this = |(document, start, _): &&(&str, &str, Shown)| {
            *document == self.document && first.starts_with(start)
        };
        BLOCKS.iter().find(is_this).map(|(_, _, shown)| *shown)
    }

    /// Asserts that its lines are among those of a run, in this order, and that none is missing unless it is a part.
    #[track_caller]
    fn assert_printed(&self, finished: &Finished, is_part: bool) {
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let (of_run, of_sample) = (rows(finished.stderr.lines()), rows(self.texts()));
        let (document, line) = (&self.document, self.line);
        if is_part {
            let mut rest = of_run.iter();
            for row in &of_sample {
                assert!(
                    rest.any(|printed| printed == row),
                    "{document}:{line}: no {row:?} in {of_run:#?}"
                );
            }
        } else {
            assert_eq!(of_sample, of_run, "{document}:{line}");
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// Returns lines without figures and units, and without what depends on the machine or on chance: the kind of pages, and
/// packets that were not delivered.
fn rows<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let words = lines.map(without_figures);
    words
        .filter(|row| !row.starts_with("discarded ") && !row.starts_with("drops "))
        .collect()
}

/// Replaces numbers by `N` and units by `UNIT`.
fn without_figures(line: &str) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "kbit/s", "Mbit/s", "Gbit/s"];
    const PAGES: [&str; 3] = ["transparent huge pages", "hugetlb pages", "base pages"];
    let kind = PAGES.iter().find_map(|kind| line.strip_suffix(kind));
    let line = kind.map_or(line.to_owned(), |rest| rest.to_owned() + "PAGES");
    let word = |word: &str| {
        let bare = word.trim_end_matches([',', ';']);
        if UNITS.contains(&bare) {
            return "UNIT".to_owned() + &word[bare.len()..];
        }
        let mut masked = String::new();
        for c in word.chars() {
            let is_figure = c.is_ascii_digit() || c == '.' && masked.ends_with('N');
            match is_figure {
                true if masked.ends_with('N') => {}
                true => masked.push('N'),
                false => masked.push(c),
            }
        }
        masked
    };
    let words: Vec<_> = line.split_whitespace().map(word).collect();
    words.join(" ")
}

/// Lists the blocks of text in README and the book.
fn blocks() -> Vec<Block> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec!["README.md".to_owned()];
    for folder in ["docs/src", "docs/src/guides", "docs/src/reference"] {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let pages = names.filter(|name| name.ends_with(".md"));
        documents.extend(pages.map(|name| format!("{folder}/{name}")));
    }
    let read = |document: String| {
        let text = fs::read_to_string(root.join(&document)).unwrap();
        blocks_of(&document, &text)
    };
    documents.into_iter().flat_map(read).collect()
}

fn blocks_of(document: &str, text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        if line == "```text" {
            let inside = lines.by_ref().map(|(_, line)| line);
            found.push(Block {
                document: document.to_owned(),
                line: number,
                lines: inside
                    .take_while(|line| *line != "```")
                    .map(str::to_owned)
                    .collect(),
            });
        }
    }
    found
}

/// Asserts that a run prints every block that shows `shown`, and that there is one.
#[track_caller]
fn assert_shown(finished: &Finished, shown: Shown) {
    let blocks = blocks();
    let mut blocks = blocks.iter().filter(|block| block.shown() == Some(shown));
    let first = blocks.next().expect("a document has such a block");
    for block in [first].into_iter().chain(blocks) {
        block.assert_printed(finished, shown == Shown::PartOfDemo);
    }
}

#[test]
fn every_block_of_text_is_in_the_list() {
    let blocks = blocks();
    for block in &blocks {
        assert!(block.shown().is_some(), "not in BLOCKS: {block:#?}");
    }
    assert_eq!(blocks.len(), BLOCKS.len(), "BLOCKS has one that is gone");
}

#[test]
fn words_are_compared_and_figures_are_not() {
    let block = &blocks_of("x.md", "```text\n  frags  12 lent, 12 given back\n```\n")[0];
    let printed = |frags: &str| rows([frags].into_iter());
    let sample = rows(block.texts());
    assert_eq!(sample, printed("frags  5 lent, 4 given back"));
    assert_ne!(sample, printed("frags  12 lent, 12 returned"));
    assert_eq!(
        without_figures("rate  40.3 Gbit/s for 1.07 s over 10.0.0.2:52, 64 KiB each, base pages"),
        "rate N UNIT for N s over N:N, N UNIT each, PAGES"
    );
}

#[test]
fn the_samples_of_the_demo_are_what_it_prints() {
    if !has_tap("the_samples_of_the_demo_are_what_it_prints") {
        return;
    }
    let finished = run("demo --link tap --bytes 64M");
    assert_shown(&finished, Shown::Demo);
    assert_shown(&finished, Shown::PartOfDemo);
}

#[test]
fn the_sample_of_recv_is_what_it_prints() {
    in_netns("samples::the_sample_of_recv_is_what_it_prints", || {
        let recv = start_recv("-p 5201 -v 7");
        let mut stream = connect(recv_addr());
        stream.write_all(&repeating(7, 0, 2_000_000)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_shown(&recv.finish(), Shown::Receive);
    });
}

/// Returns a checkpoint in the format of safetensors with two tensors of 1 MB.
fn checkpoint() -> Vec<u8> {
    let header = br#"{"a":{"dtype":"U8","shape":[1000000],"data_offsets":[0,1000000]},"b":{"dtype":"U8","shape":[1000000],"data_offsets":[1000000,2000000]}}"#;
    let length = u64::try_from(header.len()).unwrap().to_le_bytes();
    [&length[..], header, &[7; 2_000_000]].concat()
}

#[test]
fn the_sample_of_load_is_what_it_prints() {
    const TEST: &str = "samples::the_sample_of_load_is_what_it_prints";
    in_netns(TEST, || {
        if stock::path_of("python3").is_none() {
            return skip(TEST, "python3", "there is no python3 here");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model.safetensors"), checkpoint()).unwrap();
        let mut server = Command::new("python3")
            .args(["-m", "http.server", "8000", "--directory"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while TcpStream::connect("127.0.0.1:8000").is_err() {
            assert!(start.elapsed() < LIMIT, "the server does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        let finished = run("load --peer-addr 10.77.0.1/24 http://10.77.0.1:8000/model.safetensors");
        server.kill().unwrap();
        assert!(wait_or_kill(&mut server, LIMIT).is_some());
        assert_shown(&finished, Shown::Load);
    });
}
