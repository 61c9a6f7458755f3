// UNSAFETY: writes to the code and data of a loaded library.

//! Loads the released library, with other functions in the place of the CUDA runtime that is linked into it, whose symbol table says where that
//! is, and of the functions that it would find in NVIDIA's drivers.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::path::Path;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use object::{Object, ObjectSymbol, ReadCache};
use rustix::mm::{MprotectFlags, mprotect};

/// NCCL's function that looks for the driver. Each version finds its functions in another way, and all of them keep them in variables.
const DRIVER_LOADER: &str = "_Z19ncclCudaLibraryInitv";
/// Begin of the names of these variables; some are in an unnamed namespace of C++.
const VARIABLE: &str = "pfn_";
/// The table of device functions.
const TABLE: &str = "ncclDevFuncRowToId";
/// A function that is exported, too, and so tells where the library is.
const BASE: &str = "ncclGetVersion";

const PAGE_BYTES: usize = 4096;
/// Of the code that is written over a function.
const CODE_BYTES: usize = 22;
/// cudaErrorNotSupported.
const NOT_SUPPORTED: c_int = 801;

/// The functions to put in place, by name.
pub type Functions = BTreeMap<&'static str, *const c_void>;

/// What was loaded: the library, its version, and its table of device functions, which some do not have.
pub struct Loaded {
    pub library: Library,
    pub version: c_int,
    pub table: Vec<u32>,
}

struct Symbol {
    name: String,
    /// In the file.
    address: usize,
    size: usize,
}

/// What becomes another function, with its name.
enum Place<'a> {
    Code(&'a str),
    Variable(&'a str),
}

fn place(symbol: &str) -> Option<Place<'_>> {
    if symbol == DRIVER_LOADER {
        // Nothing is left to be done.
        return Some(Place::Code("cudaGetLastError"));
    }
    if let Some(rest) = symbol.strip_prefix("cuda") {
        let is_function = rest.starts_with(|first: char| first.is_ascii_uppercase());
        return is_function.then_some(Place::Code(symbol));
    }
    match symbol.split_once(VARIABLE)? {
        ("", function) => Some(Place::Variable(function)),
        (_, function) => function.strip_suffix('E').map(Place::Variable),
    }
}

/// Reads the symbols that are used here.
fn read(path: &Path) -> Result<Vec<Symbol>, Box<dyn std::error::Error>> {
    // Of hundreds of megabytes, only the tables are read.
    let file = ReadCache::new(File::open(path)?);
    let file = object::File::parse(&file)?;
    let defined = file.symbols().filter(|symbol| symbol.is_definition());
    let symbols = defined.filter_map(|symbol| {
        let is_used = |name: &&str| [TABLE, BASE].contains(name) || place(name).is_some();
        Some(Symbol {
            name: symbol.name().ok().filter(is_used)?.to_owned(),
            address: usize::try_from(symbol.address()).ok()?,
            size: usize::try_from(symbol.size()).ok()?,
        })
    });
    Ok(symbols.collect())
}

/// Loads a library, which stays loaded; or says why it is not one that can run here.
pub fn load(path: &Path, functions: &Functions) -> Result<Loaded, String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let symbols = read(path).map_err(|error| told(&error))?;
    let find = |name: &str| symbols.iter().find(|symbol| symbol.name == name);
    let need = |name| find(name).ok_or_else(|| format!("its symbol table lacks {name}"));
    need("cudaMalloc").and(need(DRIVER_LOADER))?;
    let base = need(BASE)?;
    // SAFETY: the library's constructors register its kernels with the CUDA runtime that is linked into it.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| told(&error))?;
    // SAFETY: the function has this type, by nccl.h.
    let get = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(BASE.as_bytes()) };
    let get = *get.map_err(|error| told(&error))?;
    let bias = (get as *const c_void).expose_provenance() - base.address;
    for symbol in &symbols {
        // SAFETY: the symbols are of the file that was loaded a moment ago, and no thread runs code of it.
        unsafe { redirect(symbol, bias, functions) }?;
    }
    let mut version = 0;
    // SAFETY: as above.
    unsafe { get(&raw mut version) };
    let entry = |from| {
        // SAFETY: an entry of a constant of the library.
        unsafe { with_exposed_provenance::<u32>(from).read() }
    };
    let table = find(TABLE).into_iter();
    let places = table.flat_map(|table| (0..table.size).map(move |at| bias + table.address + at));
    let table = places.step_by(size_of::<u32>()).map(entry).collect();
    Ok(Loaded {
        library,
        version,
        table,
    })
}

/// Redirects a symbol to its function, in a library that was loaded at `bias`.
///
/// # Safety
///
/// The symbol is one of this library, and no thread runs code of it.
unsafe fn redirect(symbol: &Symbol, bias: usize, functions: &Functions) -> Result<(), String> {
    let Symbol {
        name,
        address,
        size,
    } = symbol;
    let address = bias + address;
    let code = match place(name) {
        None => return Ok(()),
        Some(Place::Variable(function)) => {
            if let Some(function) = functions.get(function) {
                let variable = with_exposed_provenance_mut::<*const c_void>(address);
                // SAFETY: a variable of the library for a pointer, by this function's contract.
                unsafe { variable.write(*function) };
            }
            return Ok(());
        }
        Some(Place::Code(function)) => match functions.get(function) {
            Some(_) if *size < CODE_BYTES => {
                return Err(format!("{name} has only {size} bytes of code"));
            }
            Some(function) => jump(0, *function),
            None if *size < CODE_BYTES => return Ok(()),
            None => {
                // Stays for as long as the process lives, like the code.
                let name = CString::new(name.as_str()).expect("a name").into_raw();
                jump(name.expose_provenance(), refuse as *const c_void)
            }
        },
    };
    // SAFETY: the code of a function of the library that is long enough, and that no thread runs.
    unsafe { write_code(address, code) };
    Ok(())
}

/// Called in place of a function of the runtime that is not there.
unsafe extern "C" fn refuse(name: *const c_char) -> c_int {
    // SAFETY: a terminated string, which `redirect` has made.
    let name = unsafe { CStr::from_ptr(name) };
    eprintln!("NCCL calls {}, which is not played", name.to_string_lossy());
    NOT_SUPPORTED
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
