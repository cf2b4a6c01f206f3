//! Reads the table of functions that a loaded shared object imports, and replaces entries.
//!
//! The dynamic loader stores one address for each imported function (ELF's JUMP_SLOT and GLOB_DAT
//! relocations, in the gABI and the processor supplements). Replacing the address redirects the
//! calls of this object, and of no other object. Writing the old address back undoes it.

use std::ffi::{CStr, c_int, c_void};
use std::{mem, ptr, slice};

use parking_lot::Mutex;

/// Held while a table is written. Each entry makes its page writable for a moment, and two threads
/// that open clients would take that from each other.
static WRITER: Mutex<()> = Mutex::new(());

/// Relocations whose target holds the address of a symbol: GLOB_DAT and JUMP_SLOT.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u64; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const ADDRESSES: [u64; 2] = [1025, 1026];

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// The base address of the loaded object that contains an address.
struct Object {
    address: usize,
    base: usize,
    dynamic: Option<usize>,
    read_only: Option<(usize, usize)>,
}

/// The entries of a table that were replaced, with their old addresses.
pub(crate) struct Replaced {
    object: Object,
    entries: Vec<(usize, usize)>,
}

impl Replaced {
    /// Writes the old addresses back.
    pub(crate) fn undo(&self) {
        let _writer = WRITER.lock();
        for &(slot, function) in &self.entries {
            // SAFETY: `replace` has written this entry, and the object stays loaded.
            unsafe { write(&self.object, slot, function as *const c_void) };
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Replaces the imported functions with these names in the shared object that contains `address`.
///
/// # Safety
/// `address` must be inside a shared object that stays loaded, and each function must be compatible
/// with the one that it replaces.
pub(crate) unsafe fn replace(
    address: *const c_void,
    functions: &[(&str, *const c_void)],
) -> Replaced {
    let _writer = WRITER.lock();
    let mut object = Object { address: address as usize, base: 0, dynamic: None, read_only: None };
    // SAFETY: `find` accepts the arguments of `dl_iterate_phdr`, and `object` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(find), (&raw mut object).cast()) };
    let mut replaced = Replaced { object, entries: Vec::new() };
    let object = &replaced.object;
    let Some(dynamic) = object.dynamic else { return replaced };
    // SAFETY: the loader has mapped and relocated the dynamic section and everything that it points
    // to.
    unsafe {
        let entry = |tag: i64| {
            let mut entry = dynamic as *const Dynamic;
            while (*entry).tag != 0 {
                if (*entry).tag == tag {
                    return Some((*entry).value as usize);
                }
                entry = entry.add(1);
            }
            None
        };
        // Some loaders write the address here, others the offset from the base.
        let address_of = |tag| {
            entry(tag).map(|value| if value < object.base { object.base + value } else { value })
        };
        let (Some(symbols), Some(names)) = (address_of(DT_SYMTAB), address_of(DT_STRTAB)) else {
            return replaced;
        };
        for (table, size) in [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)] {
            let (Some(table), Some(size)) = (address_of(table), entry(size)) else { continue };
            let relocations = slice::from_raw_parts(
                table as *const libc::Elf64_Rela,
                size / mem::size_of::<libc::Elf64_Rela>(),
            );
            for relocation in
                relocations.iter().filter(|r| ADDRESSES.contains(&(r.r_info & 0xffff_ffff)))
            {
                let symbol =
                    (symbols as *const libc::Elf64_Sym).add((relocation.r_info >> 32) as usize);
                let name = CStr::from_ptr((names + (*symbol).st_name as usize) as *const _);
                if let Some((_, function)) =
                    functions.iter().find(|(imported, _)| name.to_bytes() == imported.as_bytes())
                {
                    let slot = object.base + relocation.r_offset as usize;
                    replaced.entries.push((slot, *(slot as *const usize)));
                    write(object, slot, *function);
                }
            }
        }
    }
    replaced
}

/// Writes one address of the table, even if the loader has made the table read-only.
///
/// # Safety
/// `slot` must be an entry of the table of `object`.
unsafe fn write(object: &Object, slot: usize, function: *const c_void) {
    // SAFETY: sysconf only returns a value.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let protected = object.read_only.is_some_and(|(start, end)| (start..end).contains(&slot));
    let protect = |access: c_int| {
        // SAFETY: the page belongs to the table, and stays readable.
        !protected
            || unsafe { libc::mprotect((slot / page * page) as *mut c_void, page, access) } == 0
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE) {
        // SAFETY: the caller's promise. Other threads may read the entry at the same time; an
        // address is written atomically.
        unsafe { ptr::write_volatile(slot as *mut *const c_void, function) };
        protect(libc::PROT_READ);
    }
}

/// Records the object that contains the requested address.
///
/// # Safety
/// As `dl_iterate_phdr` calls it, with an `Object`.
unsafe extern "C" fn find(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    object: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let (info, object) = unsafe { (&*info, &mut *object.cast::<Object>()) };
    // SAFETY: the loader's own list.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let range = |header: &libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        (start, start + header.p_memsz as usize)
    };
    let holds = |header: &&libc::Elf64_Phdr| {
        let (start, end) = range(header);
        header.p_type == libc::PT_LOAD && (start..end).contains(&object.address)
    };
    if !headers.iter().any(|header| holds(&header)) {
        return 0;
    }
    let first = |kind: u32| headers.iter().find(|header| header.p_type == kind).map(range);
    object.base = base;
    object.dynamic = first(libc::PT_DYNAMIC).map(|(start, _)| start);
    object.read_only = first(libc::PT_GNU_RELRO);
    1
}
