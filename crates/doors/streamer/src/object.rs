//! Objects of S3-compatible stores, and files of HTTP servers: read by the loader, into the memory of the caller.

use std::io;
use std::ops::{ControlFlow, Range};

use devmem_tcp::RxBatch;
use transfer::load::{ArrivalCounter, Landed, LoadError, Loader};

use crate::code::Code;
use crate::log;
use crate::remedy::Worded;
use crate::store::Opened;
use crate::streamer::{FileNumber, Line};
use crate::submission::FileWanted;

/// Reads all ranges of an object, and answers each.
pub(crate) fn read(line: &Line, number: FileNumber, wanted: &FileWanted) {
    let mut answered = vec![false; wanted.ranges.len()];
    let mut answer = |range: usize, code| {
        if !std::mem::replace(&mut answered[range], true) {
            line.answer(number, range, code);
        }
    };
    let outcome = read_all(line, wanted, &mut |range| answer(range, Code::Success));
    let Err(error) = outcome else {
        return;
    };
    let code = code_of(&error);
    if code != Code::Finished {
        log::failure(&wanted.path.to_string_lossy(), &Worded(&error));
    }
    for range in 0..wanted.ranges.len() {
        answer(range, code);
    }
}

fn code_of(error: &LoadError) -> Code {
    match error {
        LoadError::Cancelled => Code::Finished,
        LoadError::PastEnd { .. } => Code::EndOfFile,
        _ => Code::FileAccess,
    }
}

fn read_all(
    line: &Line,
    wanted: &FileWanted,
    complete: &mut dyn FnMut(usize),
) -> Result<(), LoadError> {
    let mut cancel_check = || match line.is_ended() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let name = wanted.path.to_str().ok_or_else(|| {
        LoadError::Caller(io::Error::other("the name of the object is not UTF-8"))
    })?;
    let Opened { nic, source } = line.store().open(name, &mut cancel_check)?;
    let loader = Loader::new(&nic);
    let empty = wanted.ranges.iter().enumerate();
    empty
        .filter(|(_, it)| it.target.len() == 0)
        .for_each(|(number, _)| complete(number));
    for layer in layers(wanted) {
        let ranges: Vec<_> = layer.iter().map(|(range, _)| range.clone()).collect();
        let mut coming = ArrivalCounter::new(layer, wanted.ranges.len());
        let mut take = |landed: Landed<'_>| {
            let (at, len) = match landed {
                Landed::Frags { at, batch } => {
                    let len = batch.device_bytes() + batch.linear_bytes();
                    place(wanted, &coming, at..at + len as u64, batch)?;
                    (at, len as u64)
                }
                Landed::Bytes { at, bytes } => {
                    place_bytes(wanted, &coming, at, bytes)?;
                    (at, bytes.len() as u64)
                }
                Landed::Zeros { .. } => return Err(io::Error::other("an object has no holes")),
            };
            coming.add(at..at + len, complete);
            Ok(())
        };
        loader.deliver(source.clone(), &ranges, &mut take, &mut |_| cancel_check())?;
    }
    Ok(())
}

/// Divides the ranges into layers in which none overlap: the loader asks for each byte once. Nearly always there is one.
fn layers(wanted: &FileWanted) -> Vec<Vec<(Range<u64>, usize)>> {
    let ranges = wanted.ranges.iter().map(super::submission::Wanted::range);
    let mut all: Vec<_> = ranges
        .zip(0..)
        .filter(|(range, _)| !range.is_empty())
        .collect();
    all.sort_by_key(|(range, _)| range.start);
    let mut layers: Vec<Vec<(Range<u64>, usize)>> = Vec::new();
    for one in all {
        let ends_before = |layer: &&mut Vec<(Range<u64>, usize)>| {
            layer.last().is_none_or(|(last, _)| last.end <= one.0.start)
        };
        match layers.iter_mut().find(ends_before) {
            Some(layer) => layer.push(one),
            None => layers.push(vec![one]),
        }
    }
    layers
}

/// Copies received bytes to the memory of the ranges that they belong to.
fn place(
    wanted: &FileWanted,
    coming: &ArrivalCounter,
    bytes: Range<u64>,
    batch: &mut RxBatch,
) -> io::Result<()> {
    let spans = coming.spans_in(&bytes);
    if let [(span, number)] = spans
        && span.start <= bytes.start
        && bytes.end <= span.end
    {
        let target = &wanted.ranges[*number].target;
        // Fits: the range lies in memory.
        let from = usize::try_from(bytes.start - span.start).map_err(io::Error::other)?;
        let len = usize::try_from(bytes.end - bytes.start).map_err(io::Error::other)?;
        return target.fill(from, len, |out| {
            batch.copy_to(out).map_err(io::Error::other).map(drop)
        });
    }
    let len = usize::try_from(bytes.end - bytes.start).map_err(io::Error::other)?;
    let mut copy = vec![0; len];
    batch.copy_to(&mut copy).map_err(io::Error::other)?;
    place_bytes(wanted, coming, bytes.start, &copy)
}

/// Copies bytes, of which the first is at `at` in the object, to the memory of the ranges that they belong to.
fn place_bytes(
    wanted: &FileWanted,
    coming: &ArrivalCounter,
    at: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let to = |at: u64| usize::try_from(at).map_err(io::Error::other);
    let end = at.saturating_add(bytes.len() as u64);
    for (span, number) in coming.spans_in(&(at..end)) {
        let (start, end) = (span.start.max(at), span.end.min(end));
        let part = &bytes[to(start - at)?..to(end - at)?];
        let target = &wanted.ranges[*number].target;
        target.fill(to(start - span.start)?, part.len(), |out| {
            out.copy_from_slice(part);
            Ok(())
        })?;
    }
    Ok(())
}
