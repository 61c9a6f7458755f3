//! The checksum that a server has of a file: sent by itself, or told when an S3-compatible store is asked.

use client::LoadError;
use client::dial::CancelCheck;
use client::http::{Ask, Client, FileSum, Head, HttpFile, Location, SumOf};

use crate::checksum::{NoSum, StoredPart, StoredSum, SumKind};

/// Most parts of an object (Amazon S3 user guide, multipart upload limits).
const MAX_PARTS: u32 = 10_000;

/// Returns the checksum that the server has of the whole file.
///
/// # Errors
/// The server does not answer; the file has changed; [`LoadError::Cancelled`].
pub(crate) fn stored_sum(
    file: &HttpFile,
    client: Client<'_>,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Result<StoredSum, NoSum>, LoadError> {
    let sum = match file.sent_sum() {
        None if file.request().is_object() => {
            let asked = ask_head(file, client, &file.location(), cancel_check)?;
            // A store that refuses to tell has none to compare.
            asked.sum_of_file().filter(|_| asked.status == 200)
        }
        sent => sent,
    };
    let Some(FileSum { kind, value, of }) = sum else {
        return Ok(Err(NoSum::None));
    };
    let parts = match of {
        SumOf::Bytes => Vec::new(),
        SumOf::Parts(count) => match parts_of(file, client, kind, count, cancel_check)? {
            Some(parts) => parts,
            None => return Ok(Err(NoSum::Parts(kind, count))),
        },
        SumOf::Unknown => return Ok(Err(NoSum::Unclear(kind))),
    };
    Ok(Ok(StoredSum { kind, value, parts }))
}

/// Asks for the head of the file, or of a part of it, and checks that the file is the one that was loaded.
fn ask_head(
    file: &HttpFile,
    client: Client<'_>,
    location: &Location,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Head, LoadError> {
    let head = client.head(location, Ask::Checksum, cancel_check)?;
    if matches!(head.status, 200 | 206) {
        let size = head.range.as_ref().and_then(|range| range.size);
        file.check_version(size, &head)?;
    }
    Ok(head)
}

/// Asks where each of `count` parts is. `None`: the store does not tell, or they are not one after another.
fn parts_of(
    file: &HttpFile,
    client: Client<'_>,
    kind: SumKind,
    count: u32,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Option<Vec<StoredPart>>, LoadError> {
    let Some(size) = file.size().filter(|_| (1..=MAX_PARTS).contains(&count)) else {
        return Ok(None);
    };
    if count == 1 {
        let (range, sum) = (0..size, None);
        return Ok(Some(vec![StoredPart { range, sum }]));
    }
    let (mut parts, mut end) = (Vec::new(), 0);
    for number in 1..=count {
        let mut location = Location::clone(&file.location());
        location.request = location.request.of_part(number);
        let head = ask_head(file, client, &location, cancel_check)?;
        // A store that does not know parts answers with the whole object.
        let range = head.range.and_then(|range| range.bytes);
        let Some(range) = range.filter(|range| head.status == 206 && range.start == end) else {
            return Ok(None);
        };
        end = range.end;
        let sum = head
            .sum
            .filter(|sum| sum.kind == kind && sum.of == SumOf::Bytes);
        let sum = sum.map(|sum| sum.value);
        parts.push(StoredPart { range, sum });
    }
    Ok((end == size).then_some(parts))
}
