//! Parts of tensors: which bytes of a file they are, and which requests ask for them.

use std::ops::Range;

use client::Remedy;

use super::{Checkpoint, Tensor};

/// Most runs of bytes of one part: each becomes a place.
const MAX_RUNS: u64 = 1 << 20;

/// A tensor of a checkpoint, or a part of it, that is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selected {
    /// Number of the tensor in [`Checkpoint::tensors`].
    pub tensor: usize,
    /// Its dimensions, the outermost first.
    pub shape: Vec<u64>,
    /// The number of its bytes.
    pub bytes: u64,
    runs: Runs,
}

/// Why a part of a tensor cannot be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// The part has more dimensions than the tensor.
    #[error("the part of {name:?} has {given} dimensions, and the tensor {has}")]
    Dimensions {
        /// Name of the tensor.
        name: String,
        /// Dimensions of the part.
        given: usize,
        /// Dimensions of the tensor.
        has: usize,
    },
    /// The part is not inside the tensor.
    #[error(
        "{}..{} is not inside dimension {dimension} of {name:?}, which has {extent}",
        .range.start, .range.end
    )]
    Outside {
        /// Name of the tensor.
        name: String,
        /// Number of the dimension.
        dimension: usize,
        /// The part of it.
        range: Range<u64>,
        /// Its extent.
        extent: u64,
    },
    /// The elements have fewer than 8 bits, and the part begins or ends inside of a byte.
    #[error("the part of {name:?} begins or ends inside of a byte: its elements have {bits} bits")]
    InsideOfByte {
        /// Name of the tensor.
        name: String,
        /// Bits of an element.
        bits: u64,
    },
    /// The part is scattered over too many places of the file.
    #[error("the part of {name:?} is {runs} pieces of its file, more than {MAX_RUNS}")]
    TooManyRuns {
        /// Name of the tensor.
        name: String,
        /// Number of the pieces.
        runs: u64,
    },
}

impl SelectionError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::InsideOfByte { .. } => Some("choose bounds that are whole bytes".into()),
            Self::TooManyRuns { .. } => {
                Some("load more of the innermost dimensions, or the whole tensor".into())
            }
            Self::Dimensions { .. } | Self::Outside { .. } => None,
        }
    }
}

/// Where the bytes of a part are in its tensor: `len` bytes at the first offset, and at each that the outer dimensions lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Runs {
    first: u64,
    len: u64,
    /// How often, and at which distance; the outermost first.
    outer: Vec<(u64, u64)>,
}

impl Runs {
    fn count(&self) -> u64 {
        let counts = self.outer.iter().map(|(count, _)| *count);
        counts.fold(1, u64::saturating_mul)
    }

    /// Returns the runs, as ranges of the tensor, in order.
    fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        (0..self.count()).map(|number| {
            let (mut rest, mut start) = (number, self.first);
            for (count, distance) in self.outer.iter().rev() {
                start += rest % count * distance;
                rest /= count;
            }
            start..start + self.len
        })
    }
}

impl Checkpoint {
    /// Selects a tensor, by its number in [`tensors`](Self::tensors), or of its first dimensions the parts `bounds`.
    ///
    /// # Errors
    /// There is no such part, or its bytes cannot be requested.
    ///
    /// # Panics
    /// When there is no such tensor.
    pub fn select(&self, tensor: usize, bounds: &[Range<u64>]) -> Result<Selected, SelectionError> {
        Selected::of(&self.tensors[tensor], tensor, bounds)
    }
}

/// Returns shape and runs of a part of a tensor.
fn part_of(tensor: &Tensor, bounds: &[Range<u64>]) -> Result<(Vec<u64>, Runs), SelectionError> {
    let shape = shape_of(tensor, bounds)?;
    let bytes = tensor.place.len() as u64;
    // The header was checked: shape and length agree.
    let extents = tensor.shape.iter();
    let elements = extents.fold(1_u64, |all, extent| all.saturating_mul(*extent));
    let one_run = |len| Runs {
        first: 0,
        len,
        outer: Vec::new(),
    };
    if elements == 0 || shape.contains(&0) {
        return Ok((shape, one_run(0)));
    }
    let has = shape.len();
    // The innermost dimension of which a part is selected: all of those within it are one run.
    let Some(cut) = (0..has).rev().find(|&at| shape[at] != tensor.shape[at]) else {
        return Ok((shape, one_run(bytes)));
    };
    let bits = bytes.saturating_mul(8) / elements;
    let mut distances = vec![bits; has];
    for at in (1..has).rev() {
        distances[at - 1] = distances[at].saturating_mul(tensor.shape[at]);
    }
    let start = |at: usize| bounds.get(at).map_or(0, |range| range.start);
    let first: u64 = (0..has).map(|at| start(at) * distances[at]).sum();
    let len = shape[cut] * distances[cut];
    let name = || tensor.name.clone();
    let mut ends = distances[..cut].iter().copied().chain([first, len]);
    if !ends.all(|bits| bits.is_multiple_of(8)) {
        return Err(SelectionError::InsideOfByte { name: name(), bits });
    }
    let outer = (0..cut).map(|at| (shape[at], distances[at] / 8)).collect();
    let runs = Runs {
        first: first / 8,
        len: len / 8,
        outer,
    };
    match runs.count() {
        count if count > MAX_RUNS => Err(SelectionError::TooManyRuns {
            name: name(),
            runs: count,
        }),
        _ => Ok((shape, runs)),
    }
}

/// Returns the shape of a part, after a check that the tensor has it.
fn shape_of(tensor: &Tensor, bounds: &[Range<u64>]) -> Result<Vec<u64>, SelectionError> {
    let name = || tensor.name.clone();
    let has = tensor.shape.len();
    if bounds.len() > has {
        return Err(SelectionError::Dimensions {
            name: name(),
            given: bounds.len(),
            has,
        });
    }
    let mut shape = tensor.shape.clone();
    for (dimension, range) in bounds.iter().enumerate() {
        let extent = tensor.shape[dimension];
        if range.start > range.end || range.end > extent {
            return Err(SelectionError::Outside {
                name: name(),
                dimension,
                range: range.clone(),
                extent,
            });
        }
        shape[dimension] = range.end - range.start;
    }
    Ok(shape)
}

/// A range of a file that is requested, and where its bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To the next bytes of the place.
    Keep(Range<u64>),
    /// Between two runs, so near that asking for them costs less than another request: they go nowhere.
    Skip(Range<u64>),
}

impl Selected {
    /// Selects the parts `bounds` of the first dimensions of a tensor that has this `number`.
    ///
    /// # Errors
    /// There is no such part, or its bytes cannot be requested.
    pub fn of(
        tensor: &Tensor,
        number: usize,
        bounds: &[Range<u64>],
    ) -> Result<Self, SelectionError> {
        let (shape, runs) = part_of(tensor, bounds)?;
        Ok(Self {
            tensor: number,
            shape,
            bytes: runs.count() * runs.len,
            runs,
        })
    }

    /// Returns where its bytes are, as ranges of the bytes of the tensor, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.ranges()
    }

    /// Returns the number of bytes of memory for it, of which the last ones receive what is between its runs.
    pub fn memory_bytes(&self, merge_gap: u64) -> u64 {
        self.bytes.saturating_add(self.longest_skip(merge_gap))
    }

    /// Returns the length of the longest gap that is requested.
    fn longest_skip(&self, merge_gap: u64) -> u64 {
        let (mut longest, mut covered) = (0, self.runs.len);
        for (count, distance) in self.runs.outer.iter().rev() {
            let gap = distance - covered;
            if *count > 1 && gap <= merge_gap {
                longest = longest.max(gap);
            }
            covered += distance * (count - 1);
        }
        longest
    }

    /// Returns what is requested, as ranges of the tensor, in order. Gaps of at most `merge_gap` bytes are requested, too.
    pub(super) fn steps(&self, merge_gap: u64) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for run in self.runs.ranges().filter(|run| !run.is_empty()) {
            if let Some(Step::Keep(last)) = steps.last_mut() {
                let gap = last.end..run.start;
                if gap.is_empty() {
                    last.end = run.end;
                    continue;
                }
                if gap.end - gap.start <= merge_gap {
                    steps.push(Step::Skip(gap));
                }
            }
            steps.push(Step::Keep(run));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: &str, bits: u64, shape: &[u64]) -> Tensor {
        let bytes = shape.iter().product::<u64>() * bits / 8;
        Tensor {
            name: "t".to_owned(),
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            place: 256..256 + bytes as usize,
        }
    }

    fn select(tensor: &Tensor, bounds: &[Range<u64>]) -> Selected {
        Selected::of(tensor, 0, bounds).unwrap()
    }

    #[test]
    fn the_name_of_a_tensor_cannot_write_to_a_terminal() {
        let hostile = Tensor {
            name: "\u{1b}[2J\u{202e}".to_owned(),
            ..tensor("F4", 4, &[4, 4])
        };
        let bounds: [&[Range<u64>]; 3] = [&[0..1, 0..1, 0..1], &[0..5], &[0..4, 1..4]];
        for bounds in bounds {
            let refused = Selected::of(&hostile, 0, bounds).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains("\\u{1b}[2J\\u{202e}"), "{text}");
            assert!(!text.contains(devmem_tcp::text::is_unprintable), "{text}");
        }
        let failure = crate::load::StreamFailure::<()>::TooLarge {
            name: hostile.name,
            needed: 2,
            limit: 1,
        };
        let text = failure.to_string();
        assert!(!text.contains(devmem_tcp::text::is_unprintable), "{text}");
    }

    #[test]
    fn rows_are_one_run_and_columns_one_for_each_row() {
        let t = tensor("F32", 32, &[4, 10]);
        let keep =
            |ranges: &[Range<u64>]| -> Vec<_> { ranges.iter().cloned().map(Step::Keep).collect() };
        let rows = select(&t, &[1..3]);
        assert_eq!((rows.shape.as_slice(), rows.bytes), (&[2, 10][..], 80));
        assert_eq!(rows.steps(0), keep(&[40..120]));
        let columns = select(&t, &[0..4, 2..5]);
        assert_eq!((columns.shape.as_slice(), columns.bytes), (&[4, 3][..], 48));
        assert_eq!(columns.steps(0), keep(&[8..20, 48..60, 88..100, 128..140]));
        assert_eq!(columns.memory_bytes(0), 48);
        // The gaps have 28 bytes.
        assert_eq!(columns.steps(27).len(), 4);
        assert_eq!(columns.memory_bytes(27), 48);
        let merged = columns.steps(28);
        assert_eq!(merged.len(), 7);
        assert_eq!(
            merged[..3],
            [Step::Keep(8..20), Step::Skip(20..48), Step::Keep(48..60)]
        );
        assert_eq!(columns.memory_bytes(28), 48 + 28);
        assert_eq!(select(&t, &[]).steps(0), keep(&[0..160]));
        assert_eq!(select(&t, &[0..4, 0..10]).steps(0), keep(&[0..160]));
    }

    #[test]
    fn parts_of_three_dimensions_are_those_of_an_array() {
        let shape = [3_u64, 4, 5];
        let t = tensor("U8", 8, &shape);
        for bounds in [
            vec![1..3, 0..2, 1..4],
            vec![0..3, 1..2],
            vec![2..3],
            vec![0..3, 0..4, 4..5],
        ] {
            let at = |dimension: usize| {
                let all = 0..shape[dimension];
                bounds.get(dimension).cloned().unwrap_or(all)
            };
            let mut expected = Vec::new();
            for x in at(0) {
                for y in at(1) {
                    expected.extend(at(2).map(|z| (x * 4 + y) * 5 + z));
                }
            }
            let part = select(&t, &bounds);
            for merge_gap in [0, 3, 100] {
                let kept = part
                    .steps(merge_gap)
                    .into_iter()
                    .filter_map(|step| match step {
                        Step::Keep(range) => Some(range),
                        Step::Skip(_) => None,
                    });
                assert_eq!(kept.flatten().collect::<Vec<_>>(), expected, "{bounds:?}");
            }
            let longest = part.steps(3).into_iter().map(|step| match step {
                Step::Keep(_) => 0,
                Step::Skip(gap) => gap.end - gap.start,
            });
            assert_eq!(
                part.memory_bytes(3) - part.bytes,
                longest.max().unwrap_or(0),
                "{bounds:?}"
            );
        }
    }

    #[test]
    fn what_is_no_part_is_refused_and_what_is_empty_has_no_bytes() {
        let t = tensor("F4", 4, &[2, 6]);
        let refused = |bounds: &[Range<u64>]| part_of(&t, bounds).unwrap_err();
        assert!(matches!(
            refused(&[0..3]),
            SelectionError::Outside { extent: 2, .. }
        ));
        let backwards = Range { start: 2, end: 1 };
        assert!(matches!(
            refused(&[backwards]),
            SelectionError::Outside { .. }
        ));
        assert!(matches!(
            refused(&[0..1, 0..1, 0..1]),
            SelectionError::Dimensions { has: 2, .. }
        ));
        assert!(matches!(
            refused(&[0..2, 1..3]),
            SelectionError::InsideOfByte { bits: 4, .. }
        ));
        assert_eq!(select(&t, &[0..2, 2..4]).bytes, 2);
        let none = select(&t, &[0..2, 3..3]);
        assert_eq!((none.bytes, none.shape.as_slice()), (0, &[2, 0][..]));
        assert_eq!(none.steps(100), []);
        let long = tensor("U8", 8, &[MAX_RUNS + 1, 2]);
        let refused = part_of(&long, &[0..MAX_RUNS + 1, 0..1]).unwrap_err();
        assert!(
            matches!(refused, SelectionError::TooManyRuns { .. }),
            "{refused}"
        );
    }
}
