//! Which kernels the methods named `auto` may take while something is recorded, and what these
//! methods took.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A kernel that a method `auto` takes where `fulmen selftest` has approved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AutoKernel {
    /// [`AttentionMethod::Kernel`](crate::attention::AttentionMethod::Kernel).
    Attention,
    /// [`LossMethod::Kernel`](crate::loss::LossMethod::Kernel).
    Loss,
}

/// What a method `auto` took; see [`with_auto_kernels`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoTaken {
    /// The names of the methods that it took.
    pub methods: BTreeSet<String>,
    /// Whether the kernel could compute some of what another method computes.
    pub kernel_fits: bool,
}

/// What the methods `auto` took. One that nothing asked for is not in it.
pub type AllTaken = BTreeMap<AutoKernel, AutoTaken>;

impl AutoKernel {
    /// All of them.
    pub const ALL: [AutoKernel; 2] = [AutoKernel::Attention, AutoKernel::Loss];

    /// The name by which it is approved, and a text that changes with it; `None` without the feature
    /// `kernels`.
    ///
    /// ```
    /// use fulmen_nn::auto_kernels::AutoKernel;
    ///
    /// let kernel = AutoKernel::Attention.approved_as();
    /// assert!(kernel.is_none_or(|(name, text)| name == "flash_attention" && text().contains("module")));
    /// ```
    pub fn approved_as(self) -> Option<(&'static str, impl Fn() -> String)> {
        #[cfg(feature = "kernels")]
        {
            use fulmen_kernels::BuiltIn;
            let kernel = match self {
                AutoKernel::Attention => BuiltIn::FlashAttention,
                AutoKernel::Loss => BuiltIn::LinearCrossEntropy,
            };
            Some((kernel.name(), move || kernel.text()))
        }
        #[cfg(not(feature = "kernels"))]
        None::<(&'static str, fn() -> String)>
    }
}

impl fmt::Display for AutoKernel {
    /// What it computes: `attention` or `loss`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AutoKernel::Attention => "attention",
            AutoKernel::Loss => "loss",
        })
    }
}

impl AutoTaken {
    /// Adds what was taken elsewhere.
    pub fn extend(&mut self, other: AutoTaken) {
        self.methods.extend(other.methods);
        self.kernel_fits |= other.kernel_fits;
    }
}

struct Recording {
    approved: Vec<AutoKernel>,
    taken: AllTaken,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Runs `record`, in which methods named `auto` take these kernels wherever they fit. Returns what
/// they took, too. It is local to the thread, and ends with the call, even by a panic.
///
/// The Trainer does this for its steps, with the kernels that `fulmen selftest` has approved for the
/// devices. Without it, `auto` never takes a kernel.
///
/// ```
/// use fulmen_nn::attention::Attention;
/// use fulmen_nn::auto_kernels::{AutoKernel, with_auto_kernels};
/// use fulmen_tensor::{DType, Tensor};
///
/// let x = Tensor::ones(DType::Bf16, [2, 8, 200, 64]); // [batch, heads, length, width]
/// let attend = || Attention::new().causal(true).forward(&x, &x, &x);
/// let (_, taken) = with_auto_kernels(&[AutoKernel::Attention], attend);
/// let approved = &taken[&AutoKernel::Attention];
/// assert!(approved.methods.contains("kernel") && !approved.kernel_fits);
/// let (_, taken) = with_auto_kernels(&[], attend);
/// let other = &taken[&AutoKernel::Attention];
/// assert!(other.methods.contains("plain") && other.kernel_fits);
/// ```
pub fn with_auto_kernels<T>(approved: &[AutoKernel], record: impl FnOnce() -> T) -> (T, AllTaken) {
    struct Restore(Option<Recording>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDING.set(self.0.take());
        }
    }
    let own = Recording { approved: approved.to_vec(), taken: AllTaken::new() };
    let _restore = Restore(RECORDING.replace(Some(own)));
    let recorded = record();
    let taken = RECORDING.take().map(|recording| recording.taken);
    (recorded, taken.unwrap_or_default())
}

/// What a method `auto` takes: `by_kernel` if the recording takes the kernel and it fits, or else
/// `otherwise`.
pub(crate) fn decide<M: Copy + PartialEq + fmt::Display>(
    kernel: AutoKernel,
    fits: bool,
    by_kernel: M,
    otherwise: M,
) -> M {
    RECORDING.with_borrow_mut(|recording| {
        let Some(Recording { approved, taken }) = recording else { return otherwise };
        let method = if fits && approved.contains(&kernel) { by_kernel } else { otherwise };
        let taken = taken.entry(kernel).or_default();
        taken.kernel_fits |= fits && method != by_kernel;
        taken.methods.insert(method.to_string());
        method
    })
}
