//! Trials of shared objects that are compiled here from C.

use std::ffi::{CString, c_void};
use std::mem;
use std::path::PathBuf;
use std::process::Command;

use crate::{Trial, count};

type Get = unsafe extern "C" fn(usize) -> *mut c_void;
type Give = unsafe extern "C" fn(*mut c_void);

/// A shared object with the functions `get` and `give`, which stays loaded.
struct Library {
    get: Get,
    give: Give,
}

impl Library {
    fn compile(name: &str, give: &str) -> Library {
        let folder =
            std::env::temp_dir().join(format!("fulmen-cpu-pool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |extension: &str| -> PathBuf { folder.join(format!("{name}.{extension}")) };
        let source = format!(
            "#include <stdlib.h>
             void *get(size_t size) {{ void *it = 0; posix_memalign(&it, 64, size); return it; }}
             void give(void *it) {{ {give} }}"
        );
        std::fs::write(path("c"), source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).args([path("so"), path("c")]);
        assert!(cc.status().unwrap().success());
        let file = CString::new(path("so").to_str().unwrap()).unwrap();
        // SAFETY: the file was just compiled, and has functions of these types.
        let library = unsafe {
            let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null());
            Library {
                get: mem::transmute::<*mut c_void, Get>(libc::dlsym(library, c"get".as_ptr())),
                give: mem::transmute::<*mut c_void, Give>(libc::dlsym(library, c"give".as_ptr())),
            }
        };
        std::fs::remove_dir_all(folder).unwrap();
        library
    }

    fn get(&self, size: usize) -> *mut c_void {
        // SAFETY: the function accepts any size.
        unsafe { (self.get)(size) }
    }

    fn give(&self, block: *mut c_void) {
        // SAFETY: the block comes from `get`.
        unsafe { (self.give)(block) }
    }

    /// Tries the library with one block of 2 MiB. Returns whether it has passed.
    fn is_served(&self) -> bool {
        // SAFETY: the library stays loaded.
        let trial = unsafe { Trial::begin(self.get as *const c_void) }.unwrap();
        assert!(!trial.has_passed());
        self.give(self.get(2 << 20));
        let has_passed = trial.has_passed();
        assert_eq!(trial.end(), has_passed);
        has_passed
    }
}

#[test]
fn a_library_that_frees_its_blocks_is_served() {
    const SIZE: usize = 7 << 20;
    let library = Library::compile("frees", "free(it);");
    assert!(library.is_served());
    // SAFETY: the library stays loaded.
    assert!(unsafe { Trial::begin(library.get as *const c_void) }.is_none(), "once");
    let block = library.get(SIZE);
    assert_eq!(count(SIZE), (1, 0));
    library.give(block);
    assert_eq!(count(SIZE), (0, 1));
    assert_eq!(library.get(SIZE), block);
    library.give(block);
    let small = library.get(100);
    library.give(small);
    assert_eq!(count(SIZE), (0, 1));
}

/// The code that frees such a block would not know the pool.
#[test]
fn a_library_that_does_not_free_its_blocks_keeps_its_allocator() {
    const SIZE: usize = 9 << 20;
    let library = Library::compile("leaks", "(void)it;");
    assert!(!library.is_served());
    let block = library.get(SIZE);
    assert_eq!(count(SIZE), (0, 0));
    // SAFETY: the block comes from malloc, because the library's table is as it was.
    unsafe { libc::free(block) };
}
