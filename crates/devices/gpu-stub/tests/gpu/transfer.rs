//! A stream from the memory of one GPU to that of another, through the user-space stack.

use devmem_tcp::{
    BoundRx, BoundTx, Dmabuf, Errno, Error, ErrorKind, Netdev, RxBatch, RxQueueId, Setup, Stream,
};

use netmem::in_child;

use super::support::{Api, Log, on_each};

const BYTES: usize = 3 << 20;

/// A sender with memory of device 0, and a receiver with memory of device 1.
struct World {
    source: Dmabuf,
    sender: Stream,
    receiver: Stream,
    tx: BoundTx,
    rx: BoundRx,
    _setup: Setup,
}

impl World {
    fn new(api: Api) -> Self {
        let (nic, other) = Netdev::pair("".parse().unwrap()).unwrap();
        let (source, memory) = (api.alloc(0, BYTES - 100), api.alloc(1, 16 << 20));
        assert_eq!(source.size(), BYTES, "whole pages");
        let address = "10.77.0.1:5201".parse().unwrap();
        let setup = nic.plan_receive(address).queues(1).apply().unwrap();
        let rx = nic.bind_rx(&memory, setup.queues()).unwrap();
        let tx = other.bind_tx(&source).unwrap();
        let listener = nic.listen(address).unwrap();
        let sender = other.connect(address).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        Self {
            source,
            sender,
            receiver,
            tx,
            rx,
            _setup: setup,
        }
    }
}

#[test]
fn every_byte_arrives_in_the_memory_of_the_other_gpu() {
    let body = |api| {
        let mut world = World::new(api);
        let bytes: Vec<u8> = (0..BYTES as u32)
            .map(|at| (at % 251) as u8 ^ (at >> 12) as u8)
            .collect();
        world.source.copy_in(0, &bytes).unwrap();
        let target = api.alloc(1, BYTES);
        let sent = world.sender.send(&world.tx, &[0..5, 5..BYTES]).unwrap();
        let (mut batch, mut at) = (RxBatch::with_capacity(64), 0);
        while at < BYTES {
            assert!(world.receiver.recv(&mut batch).unwrap() > 0);
            at += batch.gather_into(&target, at).unwrap();
        }
        world.sender.completions().wait(sent).unwrap();
        assert!(target.slice(0..BYTES).to_vec() == bytes);
        // The batch outlives the streams and the binding.
        drop((world.sender, world.receiver, world.tx, world.rx));
        drop(batch);
    };
    on_each("devices=2,polls=2", body, |api, log| {
        let gathered = log.count(&api.call("MemcpyDtoDAsync"));
        assert!(gathered > 0, "gathered by the GPU");
        assert_prepared(api, log);
    });
}

/// Checks that nothing was loaded, allocated or registered after the first payload: a driver may wait for running kernels then, and those of NCCL wait for
/// the payload.
fn assert_prepared(api: Api, log: &Log) {
    let preparations = [
        "ModuleLoadData",
        "MemAlloc",
        "MemHostAlloc",
        "MemHostRegister",
    ];
    let is_one = |line: &&String| {
        let mut calls = preparations.iter().map(|name| api.call(name) + " ");
        calls.any(|call| line.starts_with(&call))
    };
    let first = log.first(&api.call("MemcpyDtoHAsync"));
    let late: Vec<_> = log.0[first..].iter().filter(is_one).collect();
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn a_gather_in_a_child_of_fork_is_the_error_of_all_calls_there() {
    let body = |api: Api| {
        let mut world = World::new(api);
        world.source.copy_in(0, b"of the parent").unwrap();
        let [target, later] = [(); 2].map(|()| api.alloc(1, 8192));
        let _sent = world.sender.send(&world.tx, &[0..5, 5..13]).unwrap();
        let mut batch = RxBatch::with_capacity(64);
        assert_eq!(world.receiver.recv(&mut batch).unwrap(), 13);
        let mut started = batch.start_gather(&later, 0).unwrap();
        let failed = in_child(|| {
            let is_forked = |error: Error| {
                (error.kind(), error.errno()) == (ErrorKind::Forked, Errno::EOWNERDEAD)
            };
            let mut out = [0; 13];
            let refused = [
                started.is_done().map(drop),
                batch.gather_into(&target, 0).map(drop),
                batch.start_gather(&target, 0).map(drop),
                batch.copy_to(&mut out).map(drop),
                target.copy_from(&later, 0, 0, 1).map_err(Error::from),
            ];
            u8::from(!refused.into_iter().all(|call| call.is_err_and(is_forked)))
        });
        assert_eq!(failed, Some(0));
        assert_eq!(started.wait().unwrap(), 13);
        assert_eq!(batch.gather_into(&target, 0).unwrap(), 13);
        for memory in [target, later] {
            assert_eq!(memory.slice(0..13).to_vec(), b"of the parent");
        }
    };
    on_each("devices=2,polls=20", body, |_, _| ());
}

#[test]
fn a_gpu_that_is_lost_ends_the_stream_with_the_error_of_the_driver() {
    let body = |api| {
        let mut world = World::new(api);
        let target = api.alloc(1, BYTES);
        let _never_completes = world.sender.send(&world.tx, &[0..1, 1..BYTES]).unwrap();
        let mut batch = RxBatch::with_capacity(64);
        let error = loop {
            match world.receiver.recv(&mut batch) {
                // Gathering may be the first to notice.
                Ok(read) => assert!(read > 0 || batch.gather_into(&target, 0).is_err()),
                Err(error) => break error,
            }
            let _ = batch.gather_into(&target, 0);
        };
        // One side notices it first, and resets the other.
        match error.errno() {
            Errno::EIO => assert!(error.to_string().contains("(700)"), "{error}"),
            errno => assert_eq!(errno, Errno::ECONNRESET, "{error}"),
        }
        drop(batch);
    };
    on_each("devices=2,lost=20", body, |_, _| ());
}

#[test]
fn memory_that_is_not_exported_is_refused_for_a_nic_of_the_kernel_with_the_reason() {
    let body = |api: Api| {
        let memory = api.alloc(0, 1 << 20);
        let nic = Netdev::kernel("lo").unwrap();
        let rx = nic.bind_rx(&memory, &[RxQueueId(0)]).unwrap_err();
        let tx = nic.bind_tx(&memory).unwrap_err();
        assert_eq!(
            (rx.kind(), tx.kind()),
            (ErrorKind::Unsupported, ErrorKind::Unsupported)
        );
        assert_eq!(rx.errno(), Errno::EOPNOTSUPP);
        let reason = match api {
            Api::Cuda => "CUDA_ERROR_NOT_SUPPORTED (801)",
            Api::Hip => "the GPU does not see what the NIC writes",
        };
        assert!(rx.remedy().is_some() && tx.remedy().is_some());
        for text in [rx.to_string(), tx.to_string()] {
            let begin = "the memory cannot be given to a NIC of the kernel: ";
            assert!(text.starts_with(begin) && text.contains(reason), "{text}");
        }
    };
    on_each("dmabuf=0", body, |_, _| ());
}
