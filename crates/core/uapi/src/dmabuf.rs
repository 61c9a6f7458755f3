//! The two structures an application and the kernel exchange (linux include/uapi/linux/uio.h).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ids::{DmabufId, FragToken};

/// Where one piece of received payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[doc(alias = "dmabuf_cmsg")]
pub struct DmabufCmsg {
    /// Start, in bytes from the start of the dma-buf.
    pub frag_offset: u64,
    /// Length in bytes.
    pub frag_size: u32,
    /// Token to give the frag back with.
    pub frag_token: FragToken,
    /// Binding of the dma-buf.
    pub dmabuf_id: DmabufId,
    /// Always 0: no flag is defined.
    pub flags: u32,
}
const _: () = assert!(size_of::<DmabufCmsg>() == 24 && align_of::<DmabufCmsg>() <= 8);
const _: () = assert!(std::mem::offset_of!(DmabufCmsg, frag_size) == 8);
const _: () = assert!(std::mem::offset_of!(DmabufCmsg, frag_token) == 12);
const _: () = assert!(std::mem::offset_of!(DmabufCmsg, dmabuf_id) == 16);
const _: () = assert!(std::mem::offset_of!(DmabufCmsg, flags) == 20);

/// A range of frags to give back with `SO_DEVMEM_DONTNEED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[doc(alias = "dmabuf_token")]
pub struct DmabufToken {
    /// First token.
    pub token_start: FragToken,
    /// Number of consecutive tokens, the first included.
    pub token_count: u32,
}
const _: () = assert!(size_of::<DmabufToken>() == 8);
const _: () = assert!(std::mem::offset_of!(DmabufToken, token_count) == 4);

impl DmabufToken {
    /// Returns the range that contains only `token`.
    pub const fn one(token: FragToken) -> Self {
        Self {
            token_start: token,
            token_count: 1,
        }
    }

    /// Appends `token` if it directly follows this range; returns whether it does.
    pub fn try_extend(&mut self, token: FragToken) -> bool {
        let next = self.token_start.0.checked_add(self.token_count);
        let extends = next == Some(token.0) && self.token_count < u32::MAX;
        if extends {
            self.token_count += 1;
        }
        extends
    }

    /// Iterates over the tokens; ends at `u32::MAX` even if the count reaches past it.
    pub fn tokens(self) -> impl Iterator<Item = FragToken> {
        let Self {
            token_start,
            token_count,
        } = self;
        let end = u64::from(token_start.0) + u64::from(token_count);
        (u64::from(token_start.0)..end)
            .map_while(|token| u32::try_from(token).ok())
            .map(FragToken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cmsg_has_the_kernels_layout() {
        let cmsg = DmabufCmsg {
            frag_offset: 0x0102_0304_0506_0708,
            frag_size: 0x1112_1314,
            frag_token: FragToken(0x2122_2324),
            dmabuf_id: DmabufId(0x3132_3334),
            flags: 0,
        };
        let mut expected = Vec::new();
        expected.extend(0x0102_0304_0506_0708_u64.to_ne_bytes());
        for word in [0x1112_1314_u32, 0x2122_2324, 0x3132_3334, 0] {
            expected.extend(word.to_ne_bytes());
        }
        assert_eq!(cmsg.as_bytes(), expected);
        assert_eq!(DmabufCmsg::read_from_bytes(&expected), Ok(cmsg));
    }

    #[test]
    fn a_token_range_grows_only_at_its_end() {
        let mut range = DmabufToken::one(FragToken(7));
        assert!(range.try_extend(FragToken(8)));
        assert!(!range.try_extend(FragToken(8)));
        assert!(!range.try_extend(FragToken(10)));
        assert_eq!(
            range,
            DmabufToken {
                token_start: FragToken(7),
                token_count: 2
            }
        );
        assert_eq!(
            range.tokens().collect::<Vec<_>>(),
            [FragToken(7), FragToken(8)]
        );
    }

    #[test]
    fn a_range_past_the_last_token_ends_there() {
        let mut range = DmabufToken {
            token_start: FragToken(u32::MAX),
            token_count: u32::MAX,
        };
        assert_eq!(range.tokens().collect::<Vec<_>>(), [FragToken(u32::MAX)]);
        assert!(!range.try_extend(FragToken(0)));
    }
}
