use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{MemoryProvider, Netmem, NiovSize};

const NIOV: usize = 4096;

fn host_pool(pages: usize) -> PagePool {
    let provider = Arc::new(MemoryProvider::host(pages * NIOV, NiovSize::MIN).unwrap());
    PagePool::new(provider)
}

/// Returns a list of frags with a page each.
fn list(pool: &mut PagePool, pieces: &[&str]) -> FragList {
    let mut list = FragList::new();
    for piece in pieces {
        let page = pool.alloc().unwrap();
        let to = page.span(0, piece.len());
        to.region.copy_in(to.offset, piece.as_bytes());
        list.push(Frag::new(page, 0, piece.len() as u32));
    }
    list
}

fn bytes(list: &FragList) -> Vec<u8> {
    let mut all = Vec::new();
    for frag in list {
        let start = all.len();
        all.resize(start + frag.len(), 0);
        frag.copy_to(0, &mut all[start..]).unwrap();
    }
    assert_eq!(all.len(), list.len());
    assert!(list.iter().all(|frag| !frag.is_empty()));
    all
}

fn text(list: &FragList) -> String {
    String::from_utf8(bytes(list)).unwrap()
}

#[test]
fn splitting_inside_a_frag_shares_its_memory() {
    let mut pool = host_pool(8);
    let mut rest = list(&mut pool, &["abc", "defg", "hi"]);
    let front = rest.split_off_front(5);
    assert_eq!((text(&front), text(&rest)), ("abcde".into(), "fghi".into()));
    assert_eq!((front.frag_count(), rest.frag_count()), (2, 2));
    assert_eq!(pool.stats().outstanding, 3);
    drop(rest);
    assert_eq!(pool.stats().outstanding, 2);
    drop(front);
    pool.assert_all_home();
}

#[test]
fn the_first_run_ends_where_the_memory_does_not_go_on() {
    let mut pool = host_pool(8);
    let mut pages = Vec::new();
    assert_eq!(pool.alloc_contiguous(4, &mut pages), 4);
    let [a, b, c, d]: [Netmem; 4] = pages.try_into().unwrap();
    let mut list = FragList::new();
    assert_eq!(list.first_run(100), 0);
    list.push(Frag::new(a.share(), 10, 20));
    list.push(Frag::new(a, 30, 4066));
    list.push(Frag::new(b, 0, 4096));
    // A gap of one byte.
    list.push(Frag::new(c, 1, 4095));
    list.push(Frag::new(d, 0, 5).into_linear());
    assert_eq!(list.first_run(usize::MAX), 20 + 4066 + 4096);
    assert_eq!(list.first_run(21), 21);
    assert_eq!(list.first_run(0), 0);
    list.trim_front(20 + 4066 + 4096);
    assert_eq!(list.first_run(usize::MAX), 4095, "the linear part is apart");
    drop(list);
    pool.assert_all_home();
}

#[test]
fn splitting_between_frags_shares_nothing() {
    let mut pool = host_pool(8);
    let mut rest = list(&mut pool, &["abc", "defg"]);
    let front = rest.split_off_front(3);
    assert_eq!((text(&front), text(&rest)), ("abc".into(), "defg".into()));
    assert!(
        front
            .iter()
            .chain(&rest)
            .all(|frag| frag.netmem().is_sole_owner())
    );
    let (nothing, all) = (rest.split_off_front(0), rest.split_off_front(99));
    assert_eq!(
        (nothing.frag_count(), text(&all), rest.len()),
        (0, "defg".into(), 0)
    );
    drop((front, all));
    pool.assert_all_home();
}

#[test]
fn trimmed_frags_go_home_at_once() {
    let mut pool = host_pool(8);
    let mut payload = list(&mut pool, &["abc", "defg", "hi"]);
    payload.trim_front(4);
    assert_eq!(
        (text(&payload), pool.stats().outstanding),
        ("efghi".into(), 2)
    );
    payload.truncate(3);
    assert_eq!(
        (text(&payload), pool.stats().outstanding),
        ("efg".into(), 1)
    );
    payload.truncate(2);
    payload.truncate(50);
    assert_eq!(text(&payload), "ef");
    payload.trim_front(50);
    assert_eq!((payload.len(), payload.frag_count()), (0, 0));
    pool.assert_all_home();
}

#[test]
fn a_share_keeps_the_bytes_when_the_original_is_dropped() {
    let mut pool = host_pool(8);
    let payload = list(&mut pool, &["abc", "defg", "hi"]);
    let shared = payload.share(2, 4);
    assert_eq!(text(&shared), "cdef");
    assert_eq!(text(&payload.share(7, 99)), "hi");
    assert_eq!(
        payload.share(9, 1).len() + payload.share(3, 0).len() + payload.share(99, 9).len(),
        0
    );
    drop(payload);
    assert_eq!(
        (text(&shared), pool.stats().outstanding),
        ("cdef".into(), 2)
    );
    drop(shared);
    pool.assert_all_home();
}

#[test]
fn adjacent_frags_of_the_same_net_iov_merge_and_others_do_not() {
    let mut pool = host_pool(8);
    let (one, two) = (pool.alloc().unwrap(), pool.alloc().unwrap());
    let mut merged = FragList::new();
    let pieces = [
        (&one, 0, 10),
        (&one, 10, 5),
        (&one, 16, 4),
        (&one, 20, 4076),
        (&two, 0, 8),
        (&two, 4, 4),
    ];
    for (netmem, offset, len) in pieces {
        merged.push_merge(Frag::new(netmem.share(), offset, len));
    }
    let linear = Frag::new(two.share(), 8, 2).into_linear();
    merged.push_merge(linear);
    merged.push_merge(Frag::new(two.share(), 10, 0));
    let seen: Vec<_> = merged
        .iter()
        .map(|frag| (frag.offset(), frag.len(), frag.is_linear()))
        .collect();
    let expected = [
        (0, 15, false),
        (16, 4080, false),
        (0, 8, false),
        (4, 4, false),
        (8, 2, true),
    ];
    assert_eq!(
        (seen, merged.len()),
        (expected.to_vec(), 15 + 4080 + 8 + 4 + 2)
    );
    drop((one, two, merged));
    pool.assert_all_home();
}

#[test]
fn small_host_pieces_share_a_page_and_merge_when_appended() {
    let mut pool = host_pool(64);
    let mut all = FragList::from_host_bytes(&mut pool, b"to be ").unwrap();
    all.append(FragList::from_host_bytes(&mut pool, b"continued").unwrap());
    assert_eq!(
        (text(&all), all.frag_count()),
        ("to be continued".into(), 1)
    );
    let elsewhere = list(&mut pool, &["."]);
    all.append(elsewhere);
    assert_eq!(
        (text(&all), all.frag_count()),
        ("to be continued.".into(), 2)
    );
    assert_eq!(pool.stats().outstanding, 2);
    drop(all);
    pool.assert_all_home();
}

#[test]
#[should_panic(expected = "4 bytes at offset 4093 of 4096 bytes")]
fn a_frag_past_the_end_of_its_net_iov_panics() {
    let netmem: Netmem = host_pool(8).alloc().unwrap();
    let _frag = Frag::new(netmem, 4093, 4);
}

#[test]
#[should_panic(expected = "bytes 3..5 of a frag of 4 bytes")]
fn a_share_past_the_end_of_its_frag_panics() {
    let frag = Frag::new(host_pool(8).alloc().unwrap(), 0, 4);
    let _shared = frag.share(3..5);
}

/// What may be done to a payload, with the same done to bytes.
#[derive(Clone, Debug)]
enum Step {
    Append(Vec<u8>),
    SplitOffFront(usize),
    TrimFront(usize),
    Truncate(usize),
    Share(usize, usize),
    AppendSplit,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = || 0..40_usize;
    let step = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..20).prop_map(Step::Append),
        2 => n().prop_map(Step::SplitOffFront),
        1 => n().prop_map(Step::TrimFront),
        1 => n().prop_map(Step::Truncate),
        2 => (n(), n()).prop_map(|(offset, len)| Step::Share(offset, len)),
        2 => Just(Step::AppendSplit),
    ];
    proptest::collection::vec(step, 1..if cfg!(miri) { 10 } else { 40 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_list_has_the_same_bytes_as_a_vector(steps in steps()) {
        let mut pool = host_pool(64);
        let (mut list, mut model) = (FragList::new(), Vec::<u8>::new());
        let (mut side, mut side_model) = (FragList::new(), Vec::<u8>::new());
        for step in steps {
            match step {
                Step::Append(more) => {
                    list.append(FragList::from_host_bytes(&mut pool, &more).unwrap());
                    model.extend(more);
                }
                Step::SplitOffFront(n) => {
                    side = list.split_off_front(n);
                    side_model = model.drain(..n.min(model.len())).collect();
                }
                Step::TrimFront(n) => {
                    list.trim_front(n);
                    model.drain(..n.min(model.len()));
                }
                Step::Truncate(n) => {
                    list.truncate(n);
                    model.truncate(n);
                }
                Step::Share(offset, len) => {
                    side = list.share(offset, len);
                    side_model = model.iter().copied().skip(offset).take(len).collect();
                }
                Step::AppendSplit => {
                    list.append(std::mem::take(&mut side));
                    model.append(&mut side_model);
                }
            }
            prop_assert_eq!(bytes(&list), &model[..]);
            prop_assert_eq!(bytes(&side), &side_model[..]);
        }
        drop((list, side));
        pool.assert_all_home();
    }
}
