//! `cargo xtask layers`: which crate may depend on which, and which names only some crates may say.

use crate::finding::Finding;
use crate::source::Source;
use crate::workspace::{Package, Workspace};

/// Every crate, with the crates it may depend on. This table is the dependency direction; ARCHITECTURE.md
/// repeats its lines, and the check compares.
const LAYERS: &[Layer] = &[
    Layer {
        name: "devmem-uapi",
        may_use: &[],
    },
    Layer {
        name: "wire",
        may_use: &[],
    },
    Layer {
        name: "steer",
        may_use: &["wire"],
    },
    Layer {
        name: "netmem",
        may_use: &["devmem-uapi"],
    },
    Layer {
        name: "tcp",
        may_use: &["netmem", "wire"],
    },
    Layer {
        name: "nic",
        may_use: &["steer", "wire", "netmem"],
    },
    Layer {
        name: "stack",
        may_use: &["nic", "tcp", "netmem", "devmem-uapi", "wire", "steer"],
    },
    Layer {
        name: "netsim",
        may_use: &[
            "stack",
            "nic",
            "tcp",
            "netmem",
            "devmem-uapi",
            "wire",
            "steer",
        ],
    },
    Layer {
        name: "devmem-linux",
        may_use: &["devmem-uapi"],
    },
    Layer {
        name: "devmem-tcp",
        may_use: &[
            "stack",
            "devmem-linux",
            "nic",
            "tcp",
            "netmem",
            "devmem-uapi",
            "wire",
            "steer",
        ],
    },
    Layer {
        name: "gve-defs",
        may_use: &[],
    },
    Layer {
        name: "gve",
        may_use: &["gve-defs", "steer", "wire"],
    },
    Layer {
        name: "gve-driver",
        may_use: &["gve-defs"],
    },
    Layer {
        name: "vfio-user",
        may_use: &[],
    },
    Layer {
        name: "posix",
        may_use: &[
            "devmem-tcp",
            "stack",
            "nic",
            "tcp",
            "netmem",
            "devmem-uapi",
            "wire",
            "steer",
        ],
    },
    Layer {
        name: "cabi",
        may_use: &["posix", "devmem-uapi"],
    },
    Layer {
        name: "packetdrill",
        may_use: &[
            "cabi",
            "posix",
            "stack",
            "nic",
            "tcp",
            "netmem",
            "devmem-uapi",
            "wire",
        ],
    },
    Layer {
        name: "capi",
        may_use: &["cabi", "posix", "devmem-tcp", "netmem", "devmem-uapi"],
    },
];

/// Crates that only tests may use: a product that depends on a simulator has a wrong border somewhere.
const DEV_ONLY: &[&str] = &["netsim", "gve-driver"];

/// Names whose use is a matter of layers.
const NAMES: &[NameRule] = &[
    NameRule {
        name: "DmaPort",
        // netsim, which no product can depend on, has NICs made by hand.
        crates: Crates::Only(&["netmem", "nic", "netsim"]),
        why: "the capability to reach unreadable bytes stays with the NIC",
    },
    NameRule {
        name: "PagePool",
        crates: Crates::AllBut(&["tcp"]),
        why: "TCP sees payload, not memory",
    },
    NameRule {
        name: "FragList",
        crates: Crates::AllBut(&["tcp"]),
        why: "TCP is generic over Payload",
    },
];

struct Layer {
    name: &'static str,
    may_use: &'static [&'static str],
}

struct NameRule {
    name: &'static str,
    crates: Crates,
    why: &'static str,
}

enum Crates {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &workspace.packages {
        findings.extend(check_package(package));
    }
    findings.extend(stale_layers(&workspace.packages));
    for (path, source) in &workspace.sources {
        findings.extend(check_names(path, source));
    }
    let map = workspace
        .texts
        .get("ARCHITECTURE.md")
        .map_or("", String::as_str);
    findings.extend(check_map(map));
    findings
}

/// Returns the crate name of a folder or file under `crates/`.
fn crate_name(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let manifest = format!("{}/Cargo.toml", package.folder);
    let mut findings = Vec::new();
    let layer =
        crate_name(&package.folder).map(|name| LAYERS.iter().find(|layer| layer.name == name));
    if let Some(None) = layer {
        findings.push(Finding::new(
            &manifest,
            0,
            "this crate has no line in the table of xtask/src/layers.rs",
        ));
    }
    for edge in &package.edges {
        let Some(to) = crate_name(&edge.to) else {
            findings.push(Finding::new(
                &manifest,
                0,
                format!("nothing may depend on {}", edge.to),
            ));
            continue;
        };
        if edge.dev && edge.to == package.folder {
            // Its own test utilities, switched on for its tests.
            continue;
        }
        let dev_only = DEV_ONLY.contains(&to);
        if dev_only && !edge.dev {
            findings.push(Finding::new(
                &manifest,
                0,
                format!("{to} may only be a dev-dependency"),
            ));
        }
        // Outside of crates/ (the tool, this program) any crate may be used. Tests may also reach what lies
        // further down, which a dependency of theirs pulls in anyway.
        let may_use = |layer: &Layer| match edge.dev {
            true => reaches(layer, to),
            false => layer.may_use.contains(&to),
        };
        let allowed = layer.is_none_or(|layer| layer.is_some_and(may_use));
        if !(allowed || dev_only && edge.dev) {
            findings.push(Finding::new(
                &manifest,
                0,
                format!("may not depend on {to}: see xtask/src/layers.rs"),
            ));
        }
    }
    findings
}

/// Tells whether a crate may use another, directly or through others.
fn reaches(layer: &Layer, to: &str) -> bool {
    let find = |name: &str| LAYERS.iter().find(|other| other.name == name);
    layer
        .may_use
        .iter()
        .any(|name| *name == to || find(name).is_some_and(|below| reaches(below, to)))
}

/// A line of the table for a crate that is gone would let a new crate of that name in unseen.
fn stale_layers(packages: &[Package]) -> Vec<Finding> {
    let exists = |layer: &&Layer| {
        packages
            .iter()
            .any(|package| crate_name(&package.folder) == Some(layer.name))
    };
    let stale = LAYERS.iter().filter(|layer| !exists(layer));
    stale
        .map(|layer| {
            Finding::new(
                "xtask/src/layers.rs",
                0,
                format!("{} is no crate here", layer.name),
            )
        })
        .collect()
}

fn check_names(path: &str, source: &Source) -> Vec<Finding> {
    // Whatever is not a crate is outside of every list.
    let name = crate_name(path).unwrap_or("");
    let mut findings = Vec::new();
    if let Some(error) = &source.error {
        findings.push(Finding::new(
            path,
            0,
            format!("cannot be read as Rust: {error}"),
        ));
    }
    for rule in NAMES {
        let allowed = match rule.crates {
            Crates::Only(crates) => crates.contains(&name),
            Crates::AllBut(crates) => !crates.contains(&name),
        };
        if allowed {
            continue;
        }
        for line in source.lines_saying(rule.name) {
            findings.push(Finding::new(
                path,
                line,
                format!("{} may not be named here: {}", rule.name, rule.why),
            ));
        }
    }
    findings
}

fn check_map(map: &str) -> Vec<Finding> {
    let missing = LAYERS
        .iter()
        .map(line_of)
        .filter(|line| !map.lines().any(|written| written.trim() == line));
    missing
        .map(|line| Finding::new("ARCHITECTURE.md", 0, format!("lacks the line `{line}`")))
        .collect()
}

fn line_of(layer: &Layer) -> String {
    match layer.may_use {
        [] => format!("{} -> nothing", layer.name),
        names => format!("{} -> {}", layer.name, names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Edge;

    fn package(folder: &str, edges: &[(&str, bool)]) -> Package {
        let edges = edges
            .iter()
            .map(|&(to, dev)| Edge {
                to: to.to_owned(),
                dev,
            })
            .collect();
        Package {
            folder: folder.to_owned(),
            edges,
            roots: Vec::new(),
        }
    }

    fn whats(findings: &[Finding]) -> Vec<&str> {
        findings
            .iter()
            .map(|finding| finding.what.as_str())
            .collect()
    }

    #[test]
    fn an_edge_of_the_table_is_fine() {
        assert_eq!(
            check_package(&package("crates/steer", &[("crates/wire", false)])),
            []
        );
    }

    #[test]
    fn an_edge_against_the_table_is_found() {
        let findings = check_package(&package("crates/wire", &[("crates/steer", false)]));
        assert_eq!(
            whats(&findings),
            ["may not depend on steer: see xtask/src/layers.rs"]
        );
    }

    #[test]
    fn tests_may_reach_what_lies_further_down() {
        let nic = |dev| package("crates/nic", &[("crates/devmem-uapi", dev)]);
        assert_eq!(check_package(&nic(true)), []);
        assert_eq!(check_package(&nic(false)).len(), 1);
    }

    #[test]
    fn a_dev_edge_against_the_table_is_found_too() {
        let findings = check_package(&package("crates/tcp", &[("crates/stack", true)]));
        assert_eq!(
            whats(&findings),
            ["may not depend on stack: see xtask/src/layers.rs"]
        );
    }

    #[test]
    fn a_crate_may_give_itself_features_for_its_tests_only() {
        let own = |dev| package("crates/tcp", &[("crates/tcp", dev)]);
        assert_eq!(check_package(&own(true)), []);
        assert!(!check_package(&own(false)).is_empty());
    }

    #[test]
    fn the_simulator_is_for_tests_only() {
        assert_eq!(
            check_package(&package("crates/stack", &[("crates/netsim", true)])),
            []
        );
        let findings = check_package(&package("bin/devmem-tcp", &[("crates/netsim", false)]));
        assert_eq!(whats(&findings), ["netsim may only be a dev-dependency"]);
        assert!(!check_package(&package("crates/stack", &[("crates/netsim", false)])).is_empty());
    }

    #[test]
    fn nothing_depends_on_a_binary() {
        let findings = check_package(&package("crates/devmem-tcp", &[("bin/devmem-tcp", false)]));
        assert_eq!(whats(&findings), ["nothing may depend on bin/devmem-tcp"]);
        assert!(!check_package(&package("bin/other", &[("bin/devmem-tcp", false)])).is_empty());
    }

    #[test]
    fn the_tool_may_use_any_crate() {
        assert_eq!(
            check_package(&package("bin/devmem-tcp", &[("crates/stack", false)])),
            []
        );
    }

    #[test]
    fn a_crate_without_a_line_in_the_table_is_found() {
        let findings = check_package(&package("crates/extra", &[]));
        assert_eq!(
            whats(&findings),
            ["this crate has no line in the table of xtask/src/layers.rs"]
        );
    }

    #[test]
    fn a_line_without_its_crate_is_found() {
        let all: Vec<Package> = LAYERS
            .iter()
            .map(|layer| package(&format!("crates/{}", layer.name), &[]))
            .collect();
        assert_eq!(stale_layers(&all), []);
        assert_eq!(
            whats(&stale_layers(&all[1..])),
            ["devmem-uapi is no crate here"]
        );
    }

    #[test]
    fn the_table_has_no_cycle() {
        for (at, layer) in LAYERS.iter().enumerate() {
            for used in layer.may_use {
                let below = LAYERS.iter().position(|other| other.name == *used);
                assert!(
                    below.is_some(),
                    "{} uses {used}, which is not in the table",
                    layer.name
                );
                // devmem-linux stands beside the stack, after it in the table, and is used by the library only.
                assert!(
                    below < Some(at),
                    "{} uses {used}, which is not below it",
                    layer.name
                );
            }
        }
    }

    #[test]
    fn the_dma_port_is_named_where_a_nic_is_and_nowhere_else() {
        let source = Source::parse("// DmaPort\nuse netmem::DmaPort;\n");
        assert_eq!(check_names("crates/nic/src/place.rs", &source), []);
        assert_eq!(check_names("crates/netmem/src/dma_port.rs", &source), []);
        for path in [
            "crates/stack/src/rx.rs",
            "crates/tcp/tests/a.rs",
            "bin/devmem-tcp/src/main.rs",
            "fuzz/a.rs",
        ] {
            let findings = check_names(path, &source);
            assert_eq!(findings.len(), 1, "{path}");
            assert_eq!(findings[0].line, 2);
        }
    }

    #[test]
    fn tcp_never_sees_a_page_pool() {
        let source = Source::parse("use netmem::{PagePool, FragList};\n");
        assert_eq!(check_names("crates/tcp/src/receiver.rs", &source).len(), 2);
        assert_eq!(check_names("crates/stack/src/rx.rs", &source), []);
    }

    #[test]
    fn a_file_that_is_no_rust_is_found() {
        assert_eq!(
            check_names("crates/tcp/src/lib.rs", &Source::parse("fn (")).len(),
            1
        );
    }

    #[test]
    fn the_architecture_repeats_every_line_of_the_table() {
        let map: String = LAYERS.iter().map(|layer| line_of(layer) + "\n").collect();
        assert_eq!(check_map(&map), []);
        let without_steer = map.replace("steer -> wire\n", "");
        assert_eq!(
            whats(&check_map(&without_steer)),
            ["lacks the line `steer -> wire`"]
        );
    }
}
