//! Replays the kept inputs of the fuzz targets: see fuzz/README.md.

#[path = "../../../../fuzz/bodies/load_http.rs"]
mod load_http;
#[path = "../../../../fuzz/bodies/load_nbd.rs"]
mod load_nbd;
#[path = "../../../../fuzz/bodies/load_nvme.rs"]
mod load_nvme;
#[path = "../../../../fuzz/bodies/load_safetensors.rs"]
mod load_safetensors;
#[path = "../../../../fuzz/bodies/load_url.rs"]
mod load_url;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_answers_of_http_servers_are_judged() {
    replay::replay("load_http", load_http::run);
}

#[test]
fn kept_answers_of_nbd_servers_are_judged() {
    replay::replay("load_nbd", load_nbd::run);
}

#[test]
fn kept_answers_of_nvme_controllers_are_judged() {
    replay::replay("load_nvme", load_nvme::run);
}

#[test]
fn kept_checkpoints_are_parsed() {
    replay::replay("load_safetensors", load_safetensors::run);
}

#[test]
fn kept_urls_are_parsed() {
    replay::replay("load_url", load_url::run);
}
