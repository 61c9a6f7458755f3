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
    "mapped",
    "netmem",
    "nic",
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
