//! What [`AttentionMethod::Auto`] may take while something is recorded, and what it took.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::AttentionMethod;
use crate::axes::axis_parts;
use fulmen_tensor::DType;

/// What [`AttentionMethod::Auto`] took while something was recorded; see [`with_auto_attention`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoAttention {
    /// The methods that it took. Empty if nothing asked for `auto`.
    pub methods: BTreeSet<AttentionMethod>,
    /// Whether the kernel takes some of the attention that another method computes.
    pub kernel_fits: bool,
}

impl AutoAttention {
    /// Adds what was taken elsewhere.
    pub fn extend(&mut self, other: AutoAttention) {
        self.methods.extend(other.methods);
        self.kernel_fits |= other.kernel_fits;
    }
}

/// What is known of an attention before it is recorded, for [`AttentionMethod::decided`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelArguments {
    /// The dtype of the products.
    pub dtype: DType,
    /// The number of queries.
    pub queries: usize,
    /// The number of keys.
    pub keys: usize,
    /// The features of a query and a key.
    pub width: usize,
    /// The features of a value.
    pub value_width: usize,
    /// Whether there is a mask, or a dropout that drops.
    pub has_mask_or_dropout: bool,
}

/// Shorter sequences are mostly padding in the 128 lanes of a TPU.
const SHORTEST: usize = 128;

/// libtpu has compiled the kernel's blocks of 512 up to this width.
const WIDEST: usize = 256;

impl KernelArguments {
    /// Whether `auto` may take the kernel: f32 or bf16, at least 128 queries and keys, up to 256
    /// features, neither a mask nor dropout, and whole heads and sequences on each device.
    fn fit(&self) -> bool {
        let is_whole = |axis: &str| axis_parts(axis) == 1;
        cfg!(feature = "kernels")
            && [DType::F32, DType::Bf16].contains(&self.dtype)
            && self.queries.min(self.keys) >= SHORTEST
            && self.width.max(self.value_width) <= WIDEST
            && !self.has_mask_or_dropout
            && ["length", "heads", "kv_heads"].iter().all(|axis| is_whole(axis))
    }
}

struct Recording {
    takes_kernel: bool,
    taken: AutoAttention,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Runs `record`, in which [`AttentionMethod::Auto`] takes the kernel wherever it fits, if
/// `takes_kernel`. Returns what `auto` took, too. It is local to the thread, and ends with the call,
/// even by a panic.
///
/// The Trainer does this for its steps. `takes_kernel` is whether `fulmen selftest` has approved the
/// kernel for the devices. Without it, `auto` never takes the kernel.
///
/// ```
/// use fulmen_nn::attention::{Attention, AttentionMethod, with_auto_attention};
/// use fulmen_tensor::{DType, Tensor};
///
/// let x = Tensor::ones(DType::Bf16, [2, 8, 200, 64]); // [batch, heads, length, width]
/// let attend = || Attention::new().causal(true).forward(&x, &x, &x);
/// let (_, approved) = with_auto_attention(true, attend);
/// assert!(approved.methods.contains(&AttentionMethod::Kernel) && !approved.kernel_fits);
/// let (_, other) = with_auto_attention(false, attend);
/// assert!(other.methods.contains(&AttentionMethod::Plain) && other.kernel_fits);
/// ```
pub fn with_auto_attention<T>(
    takes_kernel: bool,
    record: impl FnOnce() -> T,
) -> (T, AutoAttention) {
    struct Restore(Option<Recording>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDING.set(self.0.take());
        }
    }
    let own = Recording { takes_kernel, taken: AutoAttention::default() };
    let _restore = Restore(RECORDING.replace(Some(own)));
    let recorded = record();
    let taken = RECORDING.take().map(|recording| recording.taken);
    (recorded, taken.unwrap_or_default())
}

impl AttentionMethod {
    /// This method, with a decision for [`AttentionMethod::Auto`]: the kernel if the run
    /// [takes it](with_auto_attention) and it takes the arguments, or else `otherwise`.
    ///
    /// ```
    /// use fulmen_nn::attention::{AttentionMethod, KernelArguments, with_auto_attention};
    /// use fulmen_tensor::DType;
    ///
    /// let arguments = KernelArguments {
    ///     dtype: DType::Bf16,
    ///     queries: 4096,
    ///     keys: 4096,
    ///     width: 128,
    ///     value_width: 128,
    ///     has_mask_or_dropout: false,
    /// };
    /// let decide = || AttentionMethod::Auto.decided(&arguments, AttentionMethod::Blocks);
    /// assert_eq!(decide(), AttentionMethod::Blocks);
    /// assert_eq!(with_auto_attention(true, decide).0, AttentionMethod::Kernel);
    /// ```
    #[must_use]
    pub fn decided(
        self,
        arguments: &KernelArguments,
        otherwise: AttentionMethod,
    ) -> AttentionMethod {
        if self != AttentionMethod::Auto {
            return self;
        }
        RECORDING.with_borrow_mut(|recording| {
            let Some(Recording { takes_kernel, taken }) = recording else { return otherwise };
            let fits = arguments.fit();
            let method = if fits && *takes_kernel { AttentionMethod::Kernel } else { otherwise };
            taken.kernel_fits |= fits && method != AttentionMethod::Kernel;
            taken.methods.insert(method);
            method
        })
    }
}

/// The kernel of [`AttentionMethod::Kernel`], as `fulmen selftest` approves it.
#[derive(Clone, Copy, Debug)]
pub struct AttentionKernel {
    /// Its name.
    pub name: &'static str,
    /// Returns a text that changes with the kernel.
    pub text: fn() -> String,
}

/// The kernel of [`AttentionMethod::Kernel`]; `None` without the feature `kernels`.
///
/// ```
/// let kernel = fulmen_nn::attention::attention_kernel();
/// assert!(kernel.is_none_or(|kernel| kernel.name == "flash_attention"));
/// ```
pub fn attention_kernel() -> Option<AttentionKernel> {
    #[cfg(feature = "kernels")]
    {
        let kernel = fulmen_kernels::BuiltIn::FlashAttention;
        let text = || fulmen_kernels::BuiltIn::FlashAttention.text();
        Some(AttentionKernel { name: kernel.name(), text })
    }
    #[cfg(not(feature = "kernels"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::AxisRules;
    use fulmen_tensor::Mesh;

    const ARGUMENTS: KernelArguments = KernelArguments {
        dtype: DType::Bf16,
        queries: 128,
        keys: 128,
        width: 64,
        value_width: 64,
        has_mask_or_dropout: false,
    };

    /// What `auto` becomes, with an approved kernel and without one, and whether the kernel fits.
    fn decide(arguments: KernelArguments) -> (AttentionMethod, AttentionMethod, bool) {
        let decide = || AttentionMethod::Auto.decided(&arguments, AttentionMethod::Blocks);
        let (with, _) = with_auto_attention(true, decide);
        let (without, taken) = with_auto_attention(false, decide);
        assert_eq!(taken.methods, BTreeSet::from([without]));
        (with, without, taken.kernel_fits)
    }

    #[test]
    fn auto_takes_an_approved_kernel_where_it_fits() {
        let taken = (AttentionMethod::Kernel, AttentionMethod::Blocks, true);
        let left = (AttentionMethod::Blocks, AttentionMethod::Blocks, false);
        assert_eq!(decide(ARGUMENTS), taken);
        assert_eq!(decide(KernelArguments { dtype: DType::F32, width: 256, ..ARGUMENTS }), taken);
        for unfit in [
            KernelArguments { dtype: DType::F16, ..ARGUMENTS },
            KernelArguments { dtype: DType::F64, ..ARGUMENTS },
            KernelArguments { queries: 127, ..ARGUMENTS },
            KernelArguments { keys: 127, ..ARGUMENTS },
            KernelArguments { value_width: 257, ..ARGUMENTS },
            KernelArguments { has_mask_or_dropout: true, ..ARGUMENTS },
        ] {
            assert_eq!(decide(unfit), left, "{unfit:?}");
        }
        let mesh = Mesh::new([("data", 2), ("model", 2)]).unwrap();
        assert_eq!(AxisRules::default().apply(&mesh, || decide(ARGUMENTS)), left);
        let mesh = Mesh::new([("data", 2), ("fsdp", 2)]).unwrap();
        assert_eq!(AxisRules::default().apply(&mesh, || decide(ARGUMENTS)), taken);
    }

    #[test]
    fn outside_of_a_recording_and_for_a_named_method_nothing_is_decided() {
        let decided = |method: AttentionMethod| method.decided(&ARGUMENTS, AttentionMethod::Plain);
        assert_eq!(decided(AttentionMethod::Auto), AttentionMethod::Plain);
        let (method, taken) = with_auto_attention(true, || decided(AttentionMethod::Blocks));
        assert_eq!((method, taken), (AttentionMethod::Blocks, AutoAttention::default()));
    }
}
