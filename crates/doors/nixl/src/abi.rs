//! Whether the NIXL that is loaded has the class that this plugin is built for.
//!
//! NIXL's number of the plugin interface stays the same when virtual functions are added, and libnixl itself has no table of them: the
//! class has no function outside of its header. Each of NIXL's own plugins has one, and all of one release are built together.

use std::fs;
use std::path::{Path, PathBuf};

use elf::ElfBytes;
use elf::endian::AnyEndian;

use crate::status::{Failure, Status};

/// The table of virtual functions of `nixlBackendEngine`.
const TABLE: &str = "_ZTV17nixlBackendEngine";

/// Releases of NIXL whose class this plugin has.
const RELEASES: &str = "NIXL 1.4 and 1.5";

/// Checks that the table has `expected` bytes in the plugins of the NIXL whose library has this path.
pub(crate) fn check(libnixl: Option<&Path>, expected: u64) -> Result<(), Failure> {
    let folder = libnixl
        .and_then(Path::parent)
        .map(|folder| folder.join("plugins"));
    let other = std::env::var_os("NIXL_PLUGIN_DIR").map(PathBuf::from);
    let folders: Vec<_> = folder.into_iter().chain(other).collect();
    let found = folders.iter().find_map(|folder| find(folder));
    let refused = match found {
        Some((_, bytes)) if bytes == expected => return Ok(()),
        Some((plugin, bytes)) => format!(
            "this plugin is built for {RELEASES}, whose class of backends has a table of {expected} bytes, and {} has {bytes}; install a \
             version of NIXL that fits, or of this plugin",
            plugin.display()
        ),
        None => format!(
            "this plugin is built for {RELEASES}, and cannot find out whether the loaded NIXL is one of them: none of NIXL's own plugins is in \
             {folders:?}; install one, such as libplugin_POSIX.so"
        ),
    };
    Err(Failure::new(
        Status::NotSupported,
        format!("no engine: {refused}"),
    ))
}

/// Returns the first plugin of a folder with such a table, and its size. Short files come first: they are read whole.
fn find(folder: &Path) -> Option<(PathBuf, u64)> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let plugins = entries.map(|entry| entry.path()).filter(|path| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.starts_with("libplugin_") && name.ends_with(".so")
    });
    let mut plugins: Vec<_> = plugins
        .filter_map(|path| Some((fs::metadata(&path).ok()?.len(), path)))
        .collect();
    plugins.sort();
    let mut found = plugins.into_iter().map(|(_, path)| path);
    found.find_map(|path| {
        let bytes = table_bytes(&fs::read(&path).ok()?)?;
        Some((path, bytes))
    })
}

/// Returns the size of the table in a library, if it has one.
fn table_bytes(file: &[u8]) -> Option<u64> {
    let elf = ElfBytes::<AnyEndian>::minimal_parse(file).ok()?;
    let (symbols, names) = elf.dynamic_symbol_table().ok()??;
    let mut symbols = symbols.iter().filter(|symbol| !symbol.is_undefined());
    let table = symbols.find(|symbol| {
        names
            .get(symbol.st_name as usize)
            .is_ok_and(|name| name == TABLE)
    });
    table.map(|symbol| symbol.st_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_library_have_no_table() {
        assert_eq!(table_bytes(b""), None);
        assert_eq!(table_bytes(&[0x7f; 5000]), None);
        // A library without it: this program.
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(table_bytes(&program), None);
    }

    #[test]
    fn without_anything_to_compare_with_there_is_no_engine() {
        let refused = check(Some(Path::new("/nowhere/libnixl.so")), 232).unwrap_err();
        assert_eq!(refused.status, Status::NotSupported);
        assert!(
            refused.to_string().contains("/nowhere/plugins"),
            "{refused}"
        );
    }
}
