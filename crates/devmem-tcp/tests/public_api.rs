//! The public API of the library names only types that it owns or exports.
//!
//! Checked in what rustdoc writes about the library with `--output-format json`: `.ci/run` makes this file and names it in
//! `DEVMEM_API_JSON`. A type of another crate of the workspace in a signature, a field or an implementation would be part of
//! the promised API without being declared in it.

use std::collections::BTreeSet;

use serde_json::Value;

/// The crates of the workspace that the library depends on, by their names in paths.
const INNER: &[&str] = &[
    "devmem_cuda",
    "devmem_gpu",
    "devmem_hip",
    "devmem_linux",
    "devmem_uapi",
    "devmem_vulkan",
    "lease",
    "mapped",
    "netmem",
    "nic",
    "runtime",
    "stack",
    "steer",
    "tcp",
    "wire",
];

/// Returns a sentence for each type of the workspace's other crates that the API shows and does not export; an error if the
/// text is not what rustdoc writes.
fn check(json: &str) -> Result<Vec<String>, String> {
    let api: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let items = api["index"].as_object().ok_or("no index of items")?;
    let mut exported = BTreeSet::new();
    let mut named = Vec::new();
    for (id, item) in items {
        let of_ours = item["crate_id"] == 0;
        if let Some(target) = item["inner"]["use"]["id"].as_u64() {
            exported.insert(target.to_string());
        } else if of_ours {
            let mut types = BTreeSet::new();
            collect(&item["inner"], &mut types);
            let name = item["name"].as_str().unwrap_or("an implementation");
            named.extend(types.into_iter().map(|target| (id, name, target)));
        }
    }
    if named.is_empty() {
        return Err("no item names a type".to_owned());
    }
    let mut findings = Vec::new();
    for (id, name, target) in named {
        let path = &api["paths"][&target];
        let krate = &api["external_crates"][path["crate_id"].to_string()]["name"];
        let inner = krate.as_str().is_some_and(|name| INNER.contains(&name));
        if inner && !exported.contains(&target) {
            let parts = path["path"].as_array().into_iter().flatten();
            let parts: Vec<_> = parts.filter_map(Value::as_str).collect();
            findings.push(format!("{name} (item {id}) shows {}", parts.join("::")));
        }
    }
    findings.sort();
    Ok(findings)
}

/// Collects the ids of all types in a part of an item.
fn collect(part: &Value, types: &mut BTreeSet<String>) {
    match part {
        Value::Object(fields) => {
            if let Some(id) = fields
                .get("resolved_path")
                .and_then(|path| path["id"].as_u64())
            {
                types.insert(id.to_string());
            }
            if let Some(id) = fields.get("trait").and_then(|path| path["id"].as_u64()) {
                types.insert(id.to_string());
            }
            fields.values().for_each(|part| collect(part, types));
        }
        Value::Array(parts) => parts.iter().for_each(|part| collect(part, types)),
        _ => {}
    }
}

#[test]
fn the_api_shows_no_type_of_an_inner_crate() {
    let Some(file) = std::env::var_os("DEVMEM_API_JSON") else {
        println!(
            "SKIP DEVMEM_API_JSON is not set; `.ci/run --only doc` makes the file and sets it"
        );
        return;
    };
    let findings = check(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// A function that returns the type 7 of `stack`, and an export of the type `exported`.
fn api(exported: u32) -> String {
    format!(
        r#"{{"index": {{
            "1": {{"crate_id": 0, "name": "open", "inner": {{"function": {{"sig": {{"output":
                {{"resolved_path": {{"path": "Stack", "id": 7}}}}}}}}}}}},
            "2": {{"crate_id": 0, "name": null, "inner": {{"use": {{"name": "Stack", "id": {exported}}}}}}}
        }},
        "paths": {{"7": {{"crate_id": 3, "path": ["stack", "Stack"]}}}},
        "external_crates": {{"3": {{"name": "stack"}}}}}}"#
    )
}

#[test]
fn a_type_of_an_inner_crate_is_found_unless_it_is_exported() {
    let found = check(&api(8)).unwrap();
    assert_eq!(found, ["open (item 1) shows stack::Stack"]);
    assert!(check(&api(7)).unwrap().is_empty());
    assert!(check("{}").is_err());
}

/// Most names at the root of the library, modules among them: more do not fit one page of its documentation.
const MOST_ROOT_NAMES: usize = 60;

/// Returns the names that a crate root declares as public, without those that are hidden.
fn root_names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_hidden = false;
    for statement in source.split_inclusive(';') {
        let code = statement
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let code: String = code.collect::<Vec<_>>().join(" ");
        is_hidden |= code.contains("#[doc(hidden)]");
        let declared = code.trim().trim_end_matches(';');
        let declared = declared.rsplit(']').next().unwrap_or_default().trim();
        if let Some(module) = declared.strip_prefix("pub mod ") {
            names.extend((!is_hidden).then(|| module.to_owned()));
        } else if let Some(path) = declared.strip_prefix("pub use ") {
            let list = path.split_once('{').map_or(path, |(_, list)| list);
            let list = list.trim_end_matches('}').split(',');
            let last = |name: &str| name.rsplit("::").next().unwrap_or(name).trim().to_owned();
            names.extend(list.map(last).filter(|name| !name.is_empty()));
        }
        is_hidden = false;
    }
    names
}

#[test]
fn the_root_has_few_names() {
    let names = root_names(include_str!("../src/lib.rs"));
    assert!(names.contains(&"Netdev".to_owned()), "{names:?}");
    let count = names.len();
    assert!(
        count <= MOST_ROOT_NAMES,
        "{count} names at the root: {names:?}"
    );
}

#[test]
fn the_names_of_a_root_are_found() {
    let source = "mod a;\npub mod b;\n#[doc(hidden)]\npub mod c;\n/// d\n#[cfg(unix)]\npub mod d;\npub use a::{E, F};\npub use b::G;\n";
    assert_eq!(root_names(source), ["b", "d", "E", "F", "G"]);
}
