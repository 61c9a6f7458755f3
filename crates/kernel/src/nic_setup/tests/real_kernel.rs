//! The same with an interface of the running kernel.

use super::*;

/// A feature that is off by default on every interface.
const GRO_LIST: &str = "rx-gro-list";

/// A plan to switch a feature of the real interface dm0.
fn plan_for_real(folder: &Folder) -> SetupPlan {
    let nic = KernelNic::by_name("dm0").unwrap();
    let state = state::StateFile::claim("dm0", nic.index(), Some(&folder.0)).unwrap();
    let step = Step::Feature {
        name: GRO_LIST.to_owned(),
    };
    SetupPlan::of_steps(Box::new(nic), state, vec![step])
}

fn real_feature() -> crate::ethtool::Feature {
    let mut nic = KernelNic::by_name("dm0").unwrap();
    nic.feature(GRO_LIST).unwrap().unwrap()
}

#[test]
fn a_feature_of_the_real_kernel_is_switched_and_restored() {
    const TEST: &str =
        "nic_setup::tests::real_kernel::a_feature_of_the_real_kernel_is_switched_and_restored";
    crate::test_util::in_netns(TEST, || {
        let folder = Folder::new();
        let _tap = crate::tap::TapOptions::new("dm0").open().unwrap();
        let before = real_feature();
        assert!(before.changeable && !before.active, "{before:?}");
        let mut setup = plan_for_real(&folder).apply().unwrap();
        assert!(real_feature().active);
        assert_eq!(setup.verify().unwrap(), []);
        // The file of a living process is not restored from.
        let busy = restore_from_state_file(setup.state_file()).unwrap_err();
        assert!(matches!(busy, StateError::Busy { .. }), "{busy}");
        let report = setup.restore();
        assert!(report.is_exact(), "{report}");
        assert_eq!(real_feature(), before);
    });
}

/// Environment variable with the folder of the state files of the process that the next test kills.
const DOOMED_FOLDER: &str = "DEVMEM_TEST_DOOMED";

/// Sets the NIC up and waits to be killed.
fn be_the_doomed_process(folder: std::path::PathBuf) {
    let folder = Folder(folder, None);
    let _setup = plan_for_real(&folder).apply().unwrap();
    println!("applied");
    // Blocks until it is killed, because nothing is written to its standard input.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn settings_survive_kill_9_and_are_restored_from_the_state_file() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    const TEST: &str = "nic_setup::tests::real_kernel::settings_survive_kill_9_and_are_restored_from_the_state_file";
    if let Some(folder) = std::env::var_os(DOOMED_FOLDER) {
        return be_the_doomed_process(folder.into());
    }
    crate::test_util::in_netns(TEST, || {
        let folder = Folder::new();
        let _tap = crate::tap::TapOptions::new("dm0").open().unwrap();
        let before = real_feature();
        let mut doomed = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env(DOOMED_FOLDER, &folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(doomed.stdout.take().unwrap()).lines();
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.contains("applied"))
        );
        doomed.kill().unwrap();
        doomed.wait().unwrap();
        assert!(real_feature().active, "the settings outlive the process");
        let record = folder.records().remove(0);
        let report = restore_from_state_file(&record).unwrap();
        assert!(report.is_exact(), "{report}");
        assert_eq!(real_feature(), before);
        assert!(folder.records().is_empty());
    });
}

/// On the real kernel: all features that a TAP lacks are named, and no setting changes.
#[test]
fn a_tap_is_refused_and_its_missing_features_are_named() {
    const TEST: &str =
        "nic_setup::tests::real_kernel::a_tap_is_refused_and_its_missing_features_are_named";
    crate::test_util::in_netns(TEST, || {
        let folder = Folder::new();
        let tap = crate::tap::TapOptions::new("dm0").open().unwrap();
        tap.interface().unwrap().set_up().unwrap();
        let request = SetupRequest {
            interface: "dm0".to_owned(),
            ..request(&folder, 1)
        };
        let refused = NicSetup::plan(&request).unwrap_err();
        let PlanError::Unsupported {
            missing, driver, ..
        } = &refused
        else {
            panic!("{refused}");
        };
        assert_eq!(driver, "tun");
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(folder.records().is_empty());
    });
}
