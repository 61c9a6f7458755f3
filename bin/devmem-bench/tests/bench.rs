//! `devmem-bench`: every benchmark runs and prints its report. The figures are not judged, because tests share the machine
//! with other programs.

#[path = "../../devmem-tcp/tests/common/mod.rs"]
mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use ::tool::stock;
use common::{has_tap, run, start_command, tool};
use devmem_linux::cpu;
use devmem_linux::test_util::skip;
use rustix::process::{Signal, kill_process_group};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Asserts that each row has one sample, with bytes and CPU time.
#[track_caller]
fn assert_rows(json: &Value, names: &[&str]) {
    let rows = json["rows"].as_array().expect("rows is an array");
    let found: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(found, names);
    for row in rows {
        assert_eq!(row["errors"], serde_json::json!([]), "{row}");
        let sample = &row["samples"][0];
        assert!(sample["bytes"].as_u64() > Some(0), "{row}");
        for cost in ["sender_cpu_s_per_gb", "receiver_cpu_s_per_gb"] {
            assert!(sample[cost].as_f64() > Some(0.0), "{cost}: {row}");
        }
    }
}

#[test]
fn bench_tx_compares_ours_with_send_and_zerocopy_of_the_kernel() {
    if !has_tap("bench_tx_compares_ours_with_send_and_zerocopy_of_the_kernel") {
        return;
    }
    let options = "--reps 1 --seconds 0.1 --mem-size 32M --only kernel-send,kernel-zerocopy,writev,ours,ours/1core";
    let json = run(&format!("tx --json {options}")).json();
    assert_rows(
        &json,
        &[
            "kernel-send",
            "kernel-zerocopy",
            "writev",
            "ours",
            "ours/1core",
        ],
    );
    let ratio = &json["ratios"][0];
    assert_eq!(ratio["row"], "ours");
    let rival = ratio["against"].as_str().expect("a row's name");
    assert!(
        ["kernel-send", "kernel-zerocopy"].contains(&rival),
        "{ratio}"
    );
    assert!(ratio["total_cpu_s_per_gb"].as_f64() > Some(0.0), "{ratio}");
}

#[test]
fn bench_rx_compares_ours_with_the_kernels_receive() {
    if !has_tap("bench_rx_compares_ours_with_the_kernels_receive") {
        return;
    }
    let options = "--reps 1 --seconds 0.1 --mem-size 32M --only kernel-copy,readv,ours,ours/packet";
    let json = run(&format!("rx --json {options}")).json();
    assert_rows(&json, &["kernel-copy", "readv", "ours", "ours/packet"]);
    assert_eq!(json["ratios"][0]["against"], "readv");
}

/// Runs rows of `bench COMMAND --connections`, and checks that they are compared with one connection.
fn compare_many(command: &str, rows: &[&str]) {
    let options = "--reps 1 --seconds 0.1 --mem-size 32M --only";
    let rows_asked = rows.join(",");
    let json = run(&format!(
        "{command} --connections --json {options} {rows_asked}"
    ))
    .json();
    assert_rows(&json, rows);
    let ratio = &json["ratios"][0];
    assert_eq!(
        (&ratio["row"], &ratio["against"]),
        (&"ours/8".into(), &"ours/1".into())
    );
}

#[test]
fn bench_rx_compares_many_connections_with_one() {
    if has_tap("bench_rx_compares_many_connections_with_one") {
        compare_many("rx", &["kernel-copy/8", "ours/1", "ours/8", "ours/8/20g"]);
    }
}

#[test]
fn bench_tx_compares_many_connections_with_one() {
    if has_tap("bench_tx_compares_many_connections_with_one") {
        compare_many("tx", &["kernel-send/8", "ours/1", "ours/8"]);
    }
}

#[test]
fn bench_lossy_sends_correct_bytes_over_the_same_impaired_cable_twice() {
    const TEST: &str = "bench_lossy_sends_correct_bytes_over_the_same_impaired_cable_twice";
    if !has_tap(TEST) {
        return;
    }
    let cable = "loss=1%,dup=1%,reorder=1%,delay=1ms";
    let finished = run(&format!(
        "lossy --json --seeds 1 --seconds 0.5 --impair {cable}"
    ));
    if finished.code == Some(3) {
        return skip(TEST, "tun", finished.stderr.trim());
    }
    let json = finished.json();
    let row = &json["rows"][0];
    assert_eq!(
        (json["congestion"].as_str(), row["impair"].as_str()),
        (Some("cubic"), Some(cable))
    );
    for bytes in ["kernel_bytes", "our_bytes"] {
        assert!(
            row["samples"][0][bytes].as_u64() > Some(0),
            "{bytes}: {row}"
        );
    }
}

#[test]
fn bench_fairness_sends_correct_bytes_of_both_at_once_and_each_begins_in_turn() {
    const TEST: &str = "bench_fairness_sends_correct_bytes_of_both_at_once_and_each_begins_in_turn";
    if !has_tap(TEST) {
        return;
    }
    let cable = "rate=100mbit,delay=1ms,limit=60";
    let finished = run(&format!(
        "fairness --json --reps 2 --seconds 0.3 --warm-up 0.4 --congestion reno --pairs mixed,kernel,ours --impair {cable}"
    ));
    if finished.code == Some(3) {
        return skip(TEST, "tun", finished.stderr.trim());
    }
    let json = finished.json();
    for (row, pair) in ["mixed", "kernel", "ours"].into_iter().enumerate() {
        let row = &json["rows"][row];
        assert_eq!(
            ["congestion", "pair", "impair"].map(|key| row[key].as_str()),
            ["reno", pair, cable].map(Some)
        );
        for (sample, first) in ["ours", "kernel"].into_iter().enumerate() {
            let sample = &row["samples"][sample];
            assert_eq!(sample["first"], first);
            for rate in ["kernel_mbit_per_s", "our_mbit_per_s"] {
                assert!(sample[rate].as_f64() > Some(0.0), "{rate}: {sample}");
            }
            let rate = |whose: &str| sample[whose].as_f64().unwrap();
            let ratio = rate("our_mbit_per_s") / rate("kernel_mbit_per_s");
            assert!((rate("ratio") / ratio - 1.0).abs() < 1e-3, "{sample}");
        }
    }
}

#[test]
fn bench_loopback_verifies_the_received_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("loopback.svg");
    let options = "--reps 1 --bytes 24M --mem-size 8M --niov 4K";
    let finished = run(&format!(
        "loopback --json {options} --plot {}",
        plot.display()
    ));
    let json = finished.json();
    let svg = std::fs::read_to_string(&plot).unwrap();
    for text in ["plain copy", "TCP loopback", "10^9 bytes per CPU second"] {
        assert!(svg.contains(text), "no {text:?} in {svg}");
        assert!(finished.stderr.contains(text), "{}", finished.stderr);
    }
    assert_eq!(json["verified_bytes"], 8 * MIB);
    assert_eq!(json["samples"].as_array().map(Vec::len), Some(1));
    assert!(json["ratio"].as_f64() > Some(0.0), "{json}");
}

#[test]
fn bench_exchange_moves_messages_over_every_link_and_compares_the_rows() {
    const TEST: &str = "bench_exchange_moves_messages_over_every_link_and_compares_the_rows";
    if !has_tap(TEST) {
        return;
    }
    let names = [
        "ours/tap",
        "device/veth",
        "sockets/veth",
        "ours/shared",
        "device/shared",
        "ours/unix",
        "ours/8",
        "stream/8",
    ];
    let only = names.join(",");
    let finished = run(&format!(
        "exchange --json --reps 1 --seconds 0.05 --only {only}"
    ));
    let json = finished.json();
    let rows = json["rows"].as_array().expect("rows is an array");
    let found: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(found, names);
    for row in rows {
        let is_round_trip = row["message_bytes"] == 8;
        let measured = match is_round_trip {
            true => "round_trip_us",
            false => "gbit_per_s",
        };
        assert!(row[measured][0].as_f64() > Some(0.0), "{measured}: {row}");
        assert!(row["cpu_us_per_message"][0].as_f64() > Some(0.0), "{row}");
    }
    let ratios = json["ratios"].as_array().expect("ratios is an array");
    let compared: Vec<_> = ratios
        .iter()
        .map(|ratio| (ratio["row"].as_str(), ratio["against"].as_str()))
        .collect();
    let pair = |row, against| (Some(row), Some(against));
    assert_eq!(
        compared,
        [
            pair("ours/tap", "sockets/veth"),
            pair("device/veth", "sockets/veth"),
            pair("ours/shared", "sockets/veth"),
            pair("device/shared", "sockets/veth"),
            pair("ours/8", "stream/8")
        ]
    );
    let note = "devmem-bench: repetition 1 of 1 done";
    assert!(finished.stderr.contains(note), "{}", finished.stderr);
}

#[test]
fn bench_load_loads_from_our_nvme_target_and_stores_there() {
    const TEST: &str = "bench_load_loads_from_our_nvme_target_and_stores_there";
    for program in ["nginx", "curl"] {
        if stock::path_of(program).is_none() {
            return skip(TEST, program, &format!("there is no {program} here"));
        }
    }
    if !has_tap(TEST) {
        return;
    }
    let names = ["ours/nvme", "ours/nvme/4k-random", "ours/nvme/store"];
    let only = names.join(",");
    let json = run(&format!("load --json --reps 1 --bytes 64M --only {only}")).json();
    let rows = json["rows"].as_array().expect("rows is an array");
    let found: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(found, names);
    for row in rows {
        assert!(row["gbit_per_s"][0].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn bench_latency_measures_round_trips_and_connections_beside_the_kernels() {
    const TEST: &str = "bench_latency_measures_round_trips_and_connections_beside_the_kernels";
    if !has_tap(TEST) {
        return;
    }
    let names = [
        "kernel/8",
        "kernel/8/spin",
        "kernel-nic/8",
        "tap/8",
        "packet/8/spin",
        "shared/8",
        "kernel/connect",
        "packet/connect",
        "packet/accept",
    ];
    let only = names.join(",");
    let finished = run(&format!(
        "latency --json --reps 1 --seconds 0.05 --only {only}"
    ));
    let json = finished.json();
    let rows = json["rows"].as_array().expect("rows is an array");
    // A name is also a beginning of names.
    for name in names {
        let row = rows.iter().find(|row| row["name"] == name);
        let row = row.expect(name);
        for figure in [
            "per_second",
            "p50_us",
            "p99_us",
            "near_cpu_us",
            "far_cpu_us",
        ] {
            assert!(row[figure][0].as_f64() > Some(0.0), "{figure}: {row}");
        }
    }
    let ratios = json["ratios"].as_array().expect("ratios is an array");
    for (row, against) in [("tap/8", "kernel/8"), ("packet/connect", "kernel/connect")] {
        let of = ratios
            .iter()
            .find(|ratio| ratio["row"] == row && ratio["against"] == against);
        assert!(
            of.is_some_and(|ratio| ratio["ratio"].as_f64() > Some(0.0)),
            "{row}"
        );
    }
}

#[test]
fn an_invalid_option_is_refused_before_the_network_is_set_up() {
    for (line, text) in [
        ("tx --only nosuch", "there is no row \"nosuch\""),
        ("lossy --impair loss=200%", "--impair loss=200%"),
        ("lossy --seconds 0", "--seconds 0"),
        ("fairness --impair rate=no", "--impair rate=no"),
        ("fairness --seconds 0", "--seconds 0"),
        ("fairness --warm-up 601", "--warm-up 601"),
        ("fairness --reps 0", "--reps 0"),
        ("loopback --mem-size 3M", "--mem-size 3 MiB"),
        ("loopback --niov 3K", "--niov"),
        ("exchange --only nosuch", "there is no such row"),
        ("exchange --seconds 0", "--seconds 0"),
        ("latency --only nosuch", "there is no such row"),
        ("latency --seconds 0", "--seconds 0"),
    ] {
        run(line).failed_with(2, text);
    }
}

#[test]
fn the_rows_of_bench_tx_can_be_listed_without_running_them() {
    let finished = run("tx --list");
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("MSG_ZEROCOPY"),
        "{}",
        finished.stderr
    );
}

#[test]
fn every_benchmark_draws_its_chart() {
    for benchmark in [
        "rx", "tx", "lossy", "fairness", "loopback", "pool", "load", "exchange", "latency",
    ] {
        let finished = run(&format!("{benchmark} --help"));
        let help = String::from_utf8(finished.stdout).unwrap();
        assert!(help.contains("--plot <FILE.svg>"), "{benchmark}: {help}");
    }
}

#[test]
fn a_machine_without_tun_is_refused_before_anything_is_measured() {
    const TEST: &str = "a_machine_without_tun_is_refused_before_anything_is_measured";
    // A mount namespace in which there is no TUN device.
    let script = "mount -t tmpfs none /dev/net || exit 77; exec \"$0\" $1 --json";
    for benchmark in ["rx", "tx", "lossy", "fairness", "exchange", "latency"] {
        let mut command = Command::new("unshare");
        let tool = tool();
        command.args(["--mount", "--map-root-user", "sh", "-c", script]);
        command.arg(tool.get_program()).arg(benchmark);
        let Ok(output) = command.output() else {
            return skip(TEST, "unshare", "there is no unshare here");
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(1 | 77) if !stderr.contains("devmem-bench") => {
                return skip(TEST, "unshare", stderr.trim());
            }
            code => assert_eq!(code, Some(3), "{benchmark}: {stderr}"),
        }
        assert!(stderr.contains("/dev/net/tun"), "{benchmark}: {stderr}");
        assert!(!stderr.contains("repetition"), "{benchmark}: {stderr}");
        assert!(output.stdout.is_empty(), "{benchmark}");
    }
}

/// Starts a benchmark with more repetitions than it can finish, interrupts it after the first as a terminal does, and checks that it
/// reports what was measured: a table with `text`, and JSON with samples at `path`.
#[track_caller]
fn is_reported_after_a_signal(line: &str, text: &str, path: &str) {
    let mut command = tool();
    command.args(line.split_whitespace()).arg("--json");
    command.stdin(Stdio::null()).process_group(0);
    let mut running = start_command(command);
    running.until(" 1 of 999 done");
    kill_process_group(running.pid(), Signal::INT).unwrap();
    let finished = running.finish();
    let json = finished.interrupted_json();
    let samples = json.pointer(path).and_then(Value::as_array);
    assert!(samples.is_some_and(|all| !all.is_empty()), "{path}: {json}");
    assert!(finished.stderr.contains(text), "{}", finished.stderr);
}

#[test]
fn an_interrupted_rx_reports_what_was_measured() {
    if has_tap("an_interrupted_rx_reports_what_was_measured") {
        let line = "rx --reps 999 --seconds 0.1 --mem-size 32M --only ours,kernel-copy";
        is_reported_after_a_signal(line, "Gbit/s median", "/rows/0/samples");
    }
}

#[test]
fn an_interrupted_tx_reports_what_was_measured() {
    if has_tap("an_interrupted_tx_reports_what_was_measured") {
        let line = "tx --reps 999 --seconds 0.1 --mem-size 32M --only ours,kernel-send";
        is_reported_after_a_signal(line, "Gbit/s median", "/rows/0/samples");
    }
}

#[test]
fn an_interrupted_lossy_reports_what_was_measured() {
    if has_tap("an_interrupted_lossy_reports_what_was_measured") {
        let line = "lossy --seeds 999 --seconds 0.1 --impair delay=1ms";
        is_reported_after_a_signal(line, "every byte checked", "/rows/0/samples");
    }
}

#[test]
fn an_interrupted_exchange_reports_what_was_measured() {
    if has_tap("an_interrupted_exchange_reports_what_was_measured") {
        let line = "exchange --reps 999 --seconds 0.05 --only ours/shared";
        is_reported_after_a_signal(line, "of CPU time per message", "/rows/0/gbit_per_s");
    }
}

#[test]
fn an_interrupted_latency_reports_what_was_measured() {
    if has_tap("an_interrupted_latency_reports_what_was_measured") {
        let line = "latency --reps 999 --seconds 0.05 --only shared/8";
        is_reported_after_a_signal(line, "us there and back", "/rows/0/p50_us");
    }
}

#[test]
fn an_interrupted_load_reports_what_was_measured() {
    const TEST: &str = "an_interrupted_load_reports_what_was_measured";
    for program in ["nginx", "curl"] {
        if stock::path_of(program).is_none() {
            return skip(TEST, program, &format!("there is no {program} here"));
        }
    }
    if has_tap(TEST) {
        let line = "load --reps 999 --bytes 64M --only ours";
        is_reported_after_a_signal(line, "repetitions, median", "/rows/0/gbit_per_s");
    }
}

#[test]
fn an_interrupted_loopback_reports_what_was_measured() {
    let line = "loopback --reps 999 --bytes 8M --mem-size 8M";
    is_reported_after_a_signal(line, "8 MiB verified", "/samples");
}

#[test]
fn interrupted_shards_report_what_was_measured() {
    const TEST: &str = "interrupted_shards_report_what_was_measured";
    if cpu::allowed_cpus().len() < 2 {
        return skip(TEST, "processors", "there is only one processor here");
    }
    let line = "shards --reps 999 --bytes 8M --mem-size 8M";
    is_reported_after_a_signal(line, "2 streams, 2 shards", "/samples");
}

#[test]
fn an_interrupted_pool_reports_what_was_measured() {
    is_reported_after_a_signal("pool --reps 999", "slow_path", "/rows");
}
