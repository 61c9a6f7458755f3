//! Small requests and answers between our NIC and sockets of the kernel: answers carry the ACKs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use devmem_linux::test_util::in_netns;
use devmem_tcp::{RxBatch, Stream};

use crate::packet;
use crate::peer::{PATIENCE, V4};

const ROUNDS: u64 = 2000;
const MESSAGE: usize = 8;

/// Sends back each message, until the stream ends.
fn echo(mut stream: TcpStream) {
    stream.set_nodelay(true).expect("a TCP socket");
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message).expect("it is read");
    }
}

fn receive(stream: &mut Stream, batch: &mut RxBatch) {
    let mut received = 0;
    while received < MESSAGE {
        let most = MESSAGE - received;
        received += stream.recv_at_most(batch, most).expect("alive");
    }
}

/// Each round has a data segment of ours. A busy machine delays some answers by more than a delayed ACK, so that a few
/// segments more are right; without the interactive mode there are as many again.
fn assert_few_pure_acks(stream: &Stream) {
    let info = stream.tcp_info().expect("a user-space stream");
    let pure = info.segs_out - info.data_segs_out;
    println!(
        "{pure} segments without data, {} with data",
        info.data_segs_out
    );
    assert!(info.data_segs_out >= ROUNDS, "{info:?}");
    assert!(pure < ROUNDS / 2, "{pure} segments without data");
}

#[test]
fn requests_to_a_kernel_server_draw_no_pure_acks() {
    in_netns(
        "interactive::requests_to_a_kernel_server_draw_no_pure_acks",
        || {
            let _pair = packet::veth(V4, 1500);
            let nic = packet::netdev(V4);
            let listener = TcpListener::bind((V4.0, 0)).expect("a free port");
            let address = listener.local_addr().expect("it listens");
            let mut stream = nic.connect(address).expect("it listens");
            stream.set_timeout(Some(PATIENCE));
            let (theirs, _) = listener.accept().expect("a connection");
            let server = std::thread::spawn(move || echo(theirs));
            let mut batch = RxBatch::with_capacity(4);
            for _ in 0..ROUNDS {
                stream.write_all(&[7; MESSAGE]).expect("alive");
                receive(&mut stream, &mut batch);
            }
            assert_few_pure_acks(&stream);
            drop((batch, stream));
            server.join().expect("it does not panic");
        },
    );
}

#[test]
fn answers_to_a_kernel_client_draw_no_pure_acks() {
    in_netns(
        "interactive::answers_to_a_kernel_client_draw_no_pure_acks",
        || {
            let _pair = packet::veth(V4, 1500);
            let nic = packet::netdev(V4);
            let local: SocketAddr = format!("{}:5201", V4.1).parse().expect("an address");
            let listener = nic.listen(local).expect("a free port");
            let client = std::thread::spawn(move || {
                let mut stream = TcpStream::connect(local).expect("it listens");
                stream.set_nodelay(true).expect("a TCP socket");
                let mut message = [9; MESSAGE];
                for _ in 0..ROUNDS {
                    stream.write_all(&message).expect("it is read");
                    stream.read_exact(&mut message).expect("an answer");
                }
            });
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_timeout(Some(PATIENCE));
            let mut batch = RxBatch::with_capacity(4);
            for _ in 0..ROUNDS {
                receive(&mut stream, &mut batch);
                stream.write_all(&[9; MESSAGE]).expect("alive");
            }
            assert_few_pure_acks(&stream);
            client.join().expect("it does not panic");
            drop((batch, stream));
        },
    );
}
