//! Lists of named values: a copy of the CPU plugin's list, with values of our own.

use std::ffi::c_char;

use fulmen_pjrt::abi::*;

/// A list whose names and strings are constants, or live as long as the list that was copied.
pub(crate) struct NamedValues(pub(crate) Vec<PJRT_NamedValue>);

// SAFETY: the values point to constants of the CPU plugin and of this one.
unsafe impl Send for NamedValues {}
// SAFETY: as above.
unsafe impl Sync for NamedValues {}

impl NamedValues {
    /// # Safety
    /// `start` must point to `len` named values that live longer than the copy.
    pub(crate) unsafe fn copy(start: *const PJRT_NamedValue, len: usize) -> NamedValues {
        let first = start.cast::<u8>();
        let mut stride = size_of::<PJRT_NamedValue>();
        if len > 0 {
            // SAFETY: the list has a first element, which starts with its size.
            stride = stride.max(unsafe { first.cast::<usize>().read() });
        }
        let mut all = Vec::new();
        for i in 0..len {
            // SAFETY: within the list.
            all.push(unsafe { first.add(i * stride).cast::<PJRT_NamedValue>().read() });
        }
        NamedValues(all)
    }

    fn named(name: &'static str) -> PJRT_NamedValue {
        let mut own = PJRT_NamedValue::new();
        own.name = name.as_ptr().cast::<c_char>();
        own.name_size = name.len();
        own.value_size = 1;
        own
    }

    pub(crate) fn push_true(&mut self, name: &'static str) {
        let mut own = Self::named(name);
        own.kind = PJRT_NAMED_VALUE_BOOL;
        own.value.bool_value = true;
        self.0.push(own);
    }

    pub(crate) fn push_integer(&mut self, name: &'static str, value: i64) {
        let mut own = Self::named(name);
        own.kind = PJRT_NAMED_VALUE_INT64;
        own.value.int64_value = value;
        self.0.push(own);
    }
}
