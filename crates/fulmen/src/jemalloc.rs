//! The feature `jemalloc`: the `malloc` of the program, and of the plugins that it loads, is jemalloc's.
//!
//! XLA's CPU plugin allocates the temporaries and the results of each step with `malloc`, and frees them after the step.
//! glibc gets new pages for them from the system in each step; jemalloc keeps the pages. The dynamic loader searches for
//! a plugin's functions in the program first. So jemalloc is linked under C's own names, and a plugin finds its `malloc`
//! where it would find glibc's.
//!
//! It sets no `#[global_allocator]`. Rust's default one calls `malloc` too, and a program may have its own.
#![allow(unsafe_code, reason = "symbols with names of C, and a call of jemalloc")]

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
compile_error!(
    "the feature `jemalloc` of `fulmen` is only for Linux with glibc: on this platform, plugins would not use jemalloc. \
     Turn the feature off"
);

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linked {
    use std::ffi::{CStr, c_int, c_void};
    use std::ptr;

    /// Blocks of 8 MiB and more keep their pages when they are freed, as smaller ones do. Free pages go back to the
    /// system within a minute. jemalloc's default of 10 seconds takes them from a step that needs them again.
    const SETTINGS: &CStr = c"oversize_threshold:0,dirty_decay_ms:60000";

    /// The settings, under the name by which jemalloc looks for them: a pointer to a text. The variable `MALLOC_CONF` is
    /// read after it, so the user's settings win.
    #[used]
    #[unsafe(export_name = "malloc_conf")]
    static MALLOC_CONF: &u8 = &SETTINGS.to_bytes_with_nul()[0];

    /// Nothing else refers to jemalloc before the linker searches the C library for `malloc`.
    #[used]
    static MALLOC: unsafe extern "C" fn(usize) -> *mut c_void = tikv_jemalloc_sys::malloc;

    /// Returns all free pages to the system, and whether it could, under the name of the function of glibc that
    /// `fulmen_pjrt` calls after a long compilation. glibc's knows only glibc's heap.
    #[unsafe(no_mangle)]
    extern "C" fn malloc_trim(_kept_bytes: usize) -> c_int {
        // The number stands for all arenas (`MALLCTL_ARENAS_ALL`).
        let name = c"arena.4096.purge".as_ptr();
        // SAFETY: this control neither reads nor writes a value.
        let status = unsafe {
            tikv_jemalloc_sys::mallctl(name, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0)
        };
        c_int::from(status == 0)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        unsafe extern "C" {
            #[link_name = "malloc_trim"]
            safe fn malloc_trim_of_the_process(kept_bytes: usize) -> c_int;
        }

        /// The bytes in pages that jemalloc has from the system.
        fn resident() -> usize {
            let mut epoch = 1_u64;
            let mut bytes = 0_usize;
            let mut length = size_of::<usize>();
            // SAFETY: each value has the type of its control. Writing the epoch updates the statistics.
            let statuses = unsafe {
                let epoch = (&raw mut epoch).cast();
                let length = &raw mut length;
                [
                    tikv_jemalloc_sys::mallctl(c"epoch".as_ptr(), epoch, length, epoch, 8),
                    tikv_jemalloc_sys::mallctl(
                        c"stats.resident".as_ptr(),
                        (&raw mut bytes).cast(),
                        length,
                        ptr::null_mut(),
                        0,
                    ),
                ]
            };
            assert_eq!(statuses, [0, 0]);
            bytes
        }

        #[test]
        fn trimming_returns_the_pages_of_a_freed_block() {
            const BYTES: usize = 256 << 20;
            const SLACK: usize = 64 << 20;
            let before = resident();
            drop(std::hint::black_box(vec![1_u8; BYTES]));
            assert!(resident() > before + BYTES - SLACK, "freed pages stay");
            assert_eq!(malloc_trim_of_the_process(0), 1);
            assert!(resident() < before + SLACK, "until the process trims");
        }
    }
}
