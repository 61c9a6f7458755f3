//! What a tensor shows: a contiguous range of a memory, with a type of elements and a shape.

use crate::dtype::Dtype;
use crate::error::Error;
use crate::source::Source;

/// Most dimensions, as in numpy.
const MAX_DIMENSIONS: usize = 64;

/// A contiguous range of a memory as an array, in the order of C. Invariants: the range is inside the memory; its length is the
/// product of the shape and the size of an element.
#[derive(Clone, Debug)]
pub(crate) struct View {
    source: Source,
    offset: usize,
    bytes: usize,
    dtype: Dtype,
    /// Not negative.
    shape: Vec<i64>,
}

impl View {
    /// Returns `bytes` at `offset`, as bytes.
    pub(crate) fn of_bytes(source: Source, offset: usize, bytes: usize) -> Result<Self, Error> {
        let end = offset.checked_add(bytes);
        let len = i64::try_from(bytes).ok();
        let (Some(_), Some(len)) = (end.filter(|end| *end <= source.bytes()), len) else {
            return Err(Error::value(format!(
                "{bytes} bytes at offset {offset} are not inside {} bytes of memory",
                source.bytes()
            )));
        };
        Ok(Self {
            source,
            offset,
            bytes,
            dtype: Dtype::BYTE,
            shape: vec![len],
        })
    }

    /// Returns `bytes` at `offset` of the view, as bytes.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Result<Self, Error> {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        match inside {
            // No overflow: both are inside the memory.
            true => Self::of_bytes(self.source.clone(), self.offset + offset, bytes),
            false => Err(Error::value(format!(
                "{bytes} bytes at offset {offset} are not inside the {} bytes of the tensor",
                self.bytes
            ))),
        }
    }

    /// Returns the same bytes with another type and shape. One dimension may be -1: what is left. No shape: one dimension.
    pub(crate) fn shaped(&self, dtype: Dtype, shape: Option<&[i64]>) -> Result<Self, Error> {
        let item = dtype.bytes();
        if !self.is_aligned(dtype) {
            return Err(Error::value(format!(
                "{} needs an address that is a multiple of {item}, and this tensor begins at {:#x}\n  \
                 gather the bytes: batch.tensor(dtype, shape), batch.gather(out)",
                dtype.name(),
                self.address().unwrap_or(self.offset)
            )));
        }
        let shape = whole(self.bytes, item, shape.unwrap_or(&[-1])).ok_or_else(|| {
            Error::value(format!(
                "{} bytes of {} do not have the shape {:?}",
                self.bytes,
                dtype.name(),
                shape.unwrap_or(&[-1])
            ))
        })?;
        if shape.len() > MAX_DIMENSIONS {
            return Err(Error::value(format!(
                "{} dimensions are more than {MAX_DIMENSIONS}",
                shape.len()
            )));
        }
        Ok(Self {
            dtype,
            shape,
            ..self.clone()
        })
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the place of the first byte in its memory.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(crate) fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Returns the strides in elements.
    pub(crate) fn strides(&self) -> Vec<i64> {
        let mut strides = vec![1; self.shape.len()];
        let mut stride: i64 = 1;
        for (at, extent) in self.shape.iter().enumerate().rev() {
            strides[at] = stride;
            // Where an extent is 0, no element is reached.
            stride = stride.saturating_mul((*extent).max(1));
        }
        strides
    }

    /// Returns the address of the first byte on its device, if the memory has addresses.
    pub(crate) fn address(&self) -> Option<usize> {
        let address = self.source.place().address()?;
        Some(address.wrapping_add(self.offset))
    }

    /// Returns whether the first byte can be that of such an element. Memory without addresses begins at a page.
    pub(crate) fn is_aligned(&self, dtype: Dtype) -> bool {
        let at = self.address().unwrap_or(self.offset);
        at.is_multiple_of(dtype.bytes())
    }
}

/// Returns the shape with its -1 replaced; `None` if it is not that of `bytes`.
fn whole(bytes: usize, item: usize, shape: &[i64]) -> Option<Vec<i64>> {
    if !bytes.is_multiple_of(item) {
        return None;
    }
    let elements = i64::try_from(bytes / item).ok()?;
    let open = shape.iter().filter(|extent| **extent == -1).count();
    if open > 1 || shape.iter().any(|extent| *extent < -1) {
        return None;
    }
    let mut known = shape.iter().filter(|extent| **extent != -1);
    let known = known.try_fold(1i64, |product, extent| product.checked_mul(*extent))?;
    let rest = match (open, known) {
        (0, known) => return (known == elements).then(|| shape.to_vec()),
        (_, 0) => return None,
        (_, known) if elements % known == 0 => elements / known,
        _ => return None,
    };
    let whole = shape
        .iter()
        .map(|extent| if *extent == -1 { rest } else { *extent });
    Some(whole.collect())
}
