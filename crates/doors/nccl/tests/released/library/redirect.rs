// UNSAFETY: writes to the code and data of a loaded library.

//! Puts other functions in the place of the CUDA runtime that is linked into the released library, whose symbol table says where that is, and of
//! the functions that it would find in NVIDIA's drivers.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::ptr::with_exposed_provenance_mut;

use object::{Object, ObjectSymbol, ReadCache};
use rustix::mm::{MprotectFlags, mprotect};

/// NCCL's function that looks for the driver. Each version finds its functions in another way, and all of them keep them in variables.
pub const DRIVER_LOADER: &str = "_Z19ncclCudaLibraryInitv";
/// Begin of the names of these variables; some are in an unnamed namespace of C++.
const VARIABLE: &str = "pfn_";

const PAGE_BYTES: usize = 4096;
/// Of the code that is written over a function.
const CODE_BYTES: usize = 22;
/// cudaErrorNotSupported.
const NOT_SUPPORTED: c_int = 801;

/// A symbol, with its address in the file.
pub struct Symbol {
    pub name: String,
    pub address: usize,
    pub size: usize,
}

/// Reads the symbols of a library that are to be redirected, and those with these names.
pub fn read(library: &Path, names: &[&str]) -> Result<Vec<Symbol>, String> {
    let told = |error: &dyn Display| format!("{}: {error}", library.display());
    let file = File::open(library).map_err(|error| told(&error))?;
    // Of hundreds of megabytes, only the tables are read.
    let file = ReadCache::new(file);
    let file = object::File::parse(&file).map_err(|error| told(&error))?;
    let defined = file.symbols().filter(|symbol| symbol.is_definition());
    let symbols = defined.filter_map(|symbol| {
        let wanted = |name: &&str| names.contains(name) || redirected(name).is_some();
        Some(Symbol {
            name: symbol.name().ok().filter(wanted)?.to_owned(),
            address: usize::try_from(symbol.address()).ok()?,
            size: usize::try_from(symbol.size()).ok()?,
        })
    });
    Ok(symbols.collect())
}

/// What a symbol is, with the name of the function to put there.
enum Place<'a> {
    Code(&'a str),
    Variable(&'a str),
}

fn redirected(name: &str) -> Option<Place<'_>> {
    if name == DRIVER_LOADER {
        return Some(Place::Code("cudaGetLastError"));
    }
    if let Some(rest) = name.strip_prefix("cuda") {
        return rest
            .starts_with(|first: char| first.is_ascii_uppercase())
            .then_some(Place::Code(name));
    }
    match name.split_once(VARIABLE)? {
        ("", function) => Some(Place::Variable(function)),
        (_, function) => function.strip_suffix('E').map(Place::Variable),
    }
}

/// Called in place of a function of the runtime that is not there.
unsafe extern "C" fn refuse(name: *const c_char) -> c_int {
    // SAFETY: a terminated string, which `redirect` has made.
    let name = unsafe { CStr::from_ptr(name) };
    eprintln!("NCCL calls {}, which is not played", name.to_string_lossy());
    NOT_SUPPORTED
}

/// Redirects symbols to functions, in a library that was loaded at `bias`.
///
/// # Safety
///
/// The symbols are those of this library, and no thread runs code of it.
pub unsafe fn redirect(
    symbols: &[Symbol],
    bias: usize,
    functions: &BTreeMap<&'static str, *const c_void>,
) -> Result<(), String> {
    for Symbol {
        name,
        address,
        size,
    } in symbols
    {
        let address = bias + address;
        let code = match redirected(name) {
            None => continue,
            Some(Place::Variable(function)) => {
                if let Some(function) = functions.get(function) {
                    let variable = with_exposed_provenance_mut::<*const c_void>(address);
                    // SAFETY: a variable of the library for a pointer, by this function's contract.
                    unsafe { variable.write(*function) };
                }
                continue;
            }
            Some(Place::Code(function)) => match functions.get(function) {
                Some(_) if *size < CODE_BYTES => {
                    return Err(format!("{name} has only {size} bytes of code"));
                }
                Some(function) => jump(0, *function),
                None if *size < CODE_BYTES => continue,
                None => {
                    // Stays for as long as the process lives, like the code.
                    let name = CString::new(name.as_str())
                        .expect("a string of C")
                        .into_raw();
                    jump(name.expose_provenance(), refuse as *const c_void)
                }
            },
        };
        // SAFETY: the code of a function of the library that is long enough, and that no thread runs.
        unsafe { write_code(address, code) };
    }
    Ok(())
}

/// Returns code that gives a function its first argument and jumps to it: `mov rdi`, `mov rax`, `jmp rax`; without the first for 0.
fn jump(argument: usize, function: *const c_void) -> [u8; CODE_BYTES] {
    let mut code = [0x90; CODE_BYTES];
    if argument != 0 {
        code[..2].copy_from_slice(&[0x48, 0xbf]);
        code[2..10].copy_from_slice(&argument.to_le_bytes());
    }
    code[10..12].copy_from_slice(&[0x48, 0xb8]);
    code[12..20].copy_from_slice(&function.expose_provenance().to_le_bytes());
    code[20..].copy_from_slice(&[0xff, 0xe0]);
    code
}

/// # Safety
///
/// There is code of this length at the address, which no thread runs, and which nothing else is written over.
unsafe fn write_code(address: usize, code: [u8; CODE_BYTES]) {
    let first = address / PAGE_BYTES * PAGE_BYTES;
    let len = (address + CODE_BYTES - first).next_multiple_of(PAGE_BYTES);
    let pages = with_exposed_provenance_mut::<c_void>(first);
    let readable = MprotectFlags::READ | MprotectFlags::EXEC;
    // SAFETY: pages of the library's code, by this function's contract.
    unsafe { mprotect(pages, len, readable | MprotectFlags::WRITE) }.expect("code can be changed");
    let to = with_exposed_provenance_mut::<[u8; CODE_BYTES]>(address);
    // SAFETY: as this function's.
    unsafe { to.write_unaligned(code) };
    // SAFETY: as above.
    unsafe { mprotect(pages, len, readable) }.expect("code can be run");
}
