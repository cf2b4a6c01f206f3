//! Where [`AttentionMethod::Auto`] takes the kernel.

use super::AttentionMethod;
use crate::auto_kernels::{AutoKernel, decide};
use crate::axes::axis_parts;
use fulmen_tensor::DType;

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

impl AttentionMethod {
    /// This method, with a decision for [`AttentionMethod::Auto`]: the kernel if the run
    /// [takes it](crate::auto_kernels::with_auto_kernels) and it takes the arguments, or else `otherwise`.
    ///
    /// ```
    /// use fulmen_nn::attention::{AttentionMethod, KernelArguments};
    /// use fulmen_nn::auto_kernels::{AutoKernel, with_auto_kernels};
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
    /// let (decided, _) = with_auto_kernels(&[AutoKernel::Attention], decide);
    /// assert_eq!(decided, AttentionMethod::Kernel);
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
        decide(AutoKernel::Attention, arguments.fit(), AttentionMethod::Kernel, otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto_kernels::{AllTaken, with_auto_kernels};
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
        let (with, _) = with_auto_kernels(&AutoKernel::ALL, decide);
        let (without, taken) = with_auto_kernels(&[AutoKernel::Loss], decide);
        let taken = &taken[&AutoKernel::Attention];
        assert_eq!(taken.methods, [without.to_string()].into());
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
        let (method, taken) =
            with_auto_kernels(&AutoKernel::ALL, || decided(AttentionMethod::Blocks));
        assert_eq!((method, taken), (AttentionMethod::Blocks, AllTaken::new()));
    }
}
