//! Features: offloads of a NIC, by their kernel names.

use serde::Serialize;

use super::requests::{Ethtool, EthtoolError, HEADER_NAMES};
use crate::netlink::attr::Attributes;
use crate::netlink::{Names, Request};

/// The feature that enables flow rules: `ethtool -K ... ntuple`.
pub const NTUPLE: &str = "rx-ntuple-filter";
/// GRO in hardware, which some drivers require for header split.
pub const RX_GRO_HW: &str = "rx-gro-hw";

/// `ETHTOOL_MSG_FEATURES_GET`, `_SET`.
const GET: u8 = 11;
const SET: u8 = 12;
/// `ETHTOOL_A_FEATURES_*`; the value of each is a bit set.
const A_HW: u16 = 2;
const A_WANTED: u16 = 3;
const A_ACTIVE: u16 = 4;
const A_NOCHANGE: u16 = 5;
/// `ETHTOOL_A_BITSET_NOMASK`: only bits that are set are listed.
const A_BITSET_NOMASK: u16 = 1;
const A_BITSET_BITS: u16 = 3;
const A_BITS_BIT: u16 = 1;
const A_BIT_NAME: u16 = 2;
const A_BIT_VALUE: u16 = 3;
const BIT_NAMES: Names = Names(&[
    (A_BIT_NAME, "name", Names::NONE),
    (A_BIT_VALUE, "value", Names::NONE),
]);
const BITSET_NAMES: Names = Names(&[(
    A_BITSET_BITS,
    "bits",
    Names(&[(A_BITS_BIT, "bit", BIT_NAMES)]),
)]);
const NAMES: Names = Names(&[
    (1, "header", HEADER_NAMES),
    (A_WANTED, "wanted", BITSET_NAMES),
]);

/// One feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its name in the kernel.
    pub name: String,
    /// The driver supports switching it.
    pub changeable: bool,
    /// It was requested to be on.
    pub wanted: bool,
    /// It is on.
    pub active: bool,
    /// It can never be switched.
    pub fixed: bool,
}

/// Parses a reply.
pub(crate) fn parse(reply: Attributes<'_>) -> Vec<Feature> {
    let bits = |kind| reply.nested(kind).map(names).unwrap_or_default();
    let (wanted, active, fixed) = (bits(A_WANTED), bits(A_ACTIVE), bits(A_NOCHANGE));
    let feature = |(name, changeable): (&str, bool)| Feature {
        name: name.to_owned(),
        changeable,
        wanted: lists(&wanted, name),
        active: lists(&active, name),
        fixed: lists(&fixed, name),
    };
    bits(A_HW).into_iter().map(feature).collect()
}

fn lists(set: &[(&str, bool)], name: &str) -> bool {
    set.contains(&(name, true))
}

/// Returns the bits that a bit set lists: name, and whether the bit is set.
fn names(set: Attributes<'_>) -> Vec<(&str, bool)> {
    let all_set = set.has(A_BITSET_NOMASK);
    let bits = set.nested(A_BITSET_BITS).into_iter();
    let bits = bits.flat_map(|bits| bits.all(A_BITS_BIT));
    let named = bits.map(|bit| bit.nested()).filter_map(|bit| {
        let name = bit.text(A_BIT_NAME)?;
        Some((name, all_set || bit.has(A_BIT_VALUE)))
    });
    named.collect()
}

impl Ethtool {
    /// Lists the features that this kernel supports.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface was removed.
    pub fn features(&mut self) -> Result<Vec<Feature>, EthtoolError> {
        self.read("the features", GET, NAMES, parse)
    }

    /// Reads one feature; `None` if this kernel has no feature of this name.
    ///
    /// # Errors
    ///
    /// As [`features`](Self::features).
    pub fn feature(&mut self, name: &str) -> Result<Option<Feature>, EthtoolError> {
        Ok(self.features()?.into_iter().find(|f| f.name == name))
    }

    /// Requests a feature to be on or off. The kernel records the request, but may be unable to fulfil it:
    /// read the feature afterwards.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a name that the kernel does not have, `EPERM` without CAP_NET_ADMIN.
    pub fn set_feature(&mut self, name: &str, on: bool) -> Result<(), EthtoolError> {
        let bit = |bit: Request| {
            let bit = bit.text(A_BIT_NAME, name);
            if on { bit.flag(A_BIT_VALUE) } else { bit }
        };
        self.change(&format!("switch {name}"), SET, NAMES, |request| {
            request.nested(A_WANTED, |set| {
                set.nested(A_BITSET_BITS, |bits| bits.nested(A_BITS_BIT, bit))
            })
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit(r: Request, name: &str, value: bool) -> Request {
        r.nested(A_BITS_BIT, |b| {
            let b = b.u32(1, 7).text(A_BIT_NAME, name);
            if value {
                b.attribute(A_BIT_VALUE, &[])
            } else {
                b
            }
        })
    }

    #[test]
    fn a_bit_set_with_mask_lists_all_bits_and_one_without_mask_lists_set_bits_only() {
        let reply = Request::new(0, 0, &[])
            .nested(A_HW, |set| {
                set.nested(A_BITSET_BITS, |r| {
                    let r = bit(r, NTUPLE, true);
                    bit(r, "loopback", false)
                })
            })
            .nested(A_ACTIVE, |set| {
                set.attribute(A_BITSET_NOMASK, &[])
                    .nested(A_BITSET_BITS, |r| bit(r, NTUPLE, false))
            });
        let features = parse(reply.reply());
        let feature = |name: &str, changeable, active| Feature {
            name: name.to_owned(),
            changeable,
            wanted: false,
            active,
            fixed: false,
        };
        assert_eq!(
            features,
            [
                feature(NTUPLE, true, true),
                feature("loopback", false, false)
            ]
        );
    }

    #[test]
    fn a_reply_without_bit_sets_lists_no_feature() {
        assert_eq!(parse(Attributes::new(&[])), []);
    }
}
