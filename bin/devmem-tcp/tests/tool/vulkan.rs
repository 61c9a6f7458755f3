//! `--memory vulkan:0`: memory of a Vulkan device; Mesa's software driver is one.

use crate::common::run;

#[cfg(not(feature = "vulkan"))]
#[test]
fn vulkan_without_its_feature_is_unsupported_and_says_how_to_get_it() {
    let remedy = "memory of Vulkan devices is not part of this build; the Debian package has it; `cargo build --release -p \
                  devmem-tcp-cli --features vulkan` builds it";
    run("demo --link wire --memory vulkan:0").failed_with(3, remedy);
}

#[cfg(feature = "vulkan")]
#[test]
fn every_byte_of_a_demo_is_right_in_memory_of_a_vulkan_device() {
    use crate::common::{assert_all_right, has_tap};

    const TEST: &str = "every_byte_of_a_demo_is_right_in_memory_of_a_vulkan_device";
    if !has_vulkan(TEST) || !has_tap(TEST) {
        return;
    }
    for options in ["--bytes 32M", "--bytes 32M --direction tx"] {
        let options = format!("demo --link tap --json --memory vulkan:0 --mem-size 8M {options}");
        assert_all_right(&run(&options).json(), 32 << 20);
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn a_vulkan_device_that_is_not_there_is_named_with_the_remedy() {
    if !has_vulkan("a_vulkan_device_that_is_not_there_is_named_with_the_remedy") {
        return;
    }
    let failed = run("demo --link wire --memory vulkan:99");
    failed.failed_with(1, "there is no device vulkan:99; this process sees ");
}

#[cfg(feature = "vulkan")]
#[test]
fn a_machine_without_vulkan_loader_or_driver_is_told_what_to_install() {
    use crate::common::{start_command, tool};

    const TEST: &str = "a_machine_without_vulkan_loader_or_driver_is_told_what_to_install";
    let run_with = |name: &str| {
        let mut command = tool();
        let line = "demo --link wire --memory vulkan:0";
        command.args(line.split_whitespace()).env(name, "/missing");
        start_command(command).finish()
    };
    let text = "/missing cannot be loaded: ";
    run_with("DEVMEM_LIBVULKAN").failed_with(3, text);
    let remedy =
        "install the Vulkan loader (Debian: libvulkan1), or name its file in DEVMEM_LIBVULKAN";
    run_with("DEVMEM_LIBVULKAN").failed_with(3, remedy);
    if has_vulkan(TEST) {
        let text =
            "vkCreateInstance failed: VK_ERROR_INCOMPATIBLE_DRIVER (-9); install a Vulkan driver";
        run_with("VK_DRIVER_FILES").failed_with(3, text);
    }
}

/// Returns whether there is a device; prints why there is none.
#[cfg(feature = "vulkan")]
fn has_vulkan(test: &str) -> bool {
    let opened = devmem_tcp::vulkan::Device::open(0);
    if let Err(error) = &opened {
        let reason = error.to_string().replace("\n ", ";");
        devmem_linux::test_util::skip(test, "vulkan", &reason);
    }
    opened.is_ok()
}
