//! Names for the axes of parameters and activations, and [`AxisRules`], the table that maps names to
//! axes of a mesh. Flax's logical axis rules and MaxText's are the same.
//!
//! A module names the axes of its parameters with [`Parameter::with_axes`](crate::Parameter) when it
//! is built, and those of the activations between its layers with [`constrain`] in its `forward`.
//! It does not know any mesh. A run has the mesh and the table, and splits accordingly.
//!
//! The names in ready-made models:
//!
//! | name | axis | split by default over |
//! | --- | --- | --- |
//! | `expert` | the experts of a feed-forward network | `expert` |
//! | `batch` | the samples | `data`, `fsdp`, `expert` |
//! | `length` | the tokens of a sequence | `context` |
//! | `embed` | the features of a token | |
//! | `heads` | the heads of queries, or their features together | `model` |
//! | `kv_heads` | the heads of keys and values, or their features together | `model` |
//! | `kv` | the features of one head | |
//! | `q_lora`, `kv_lora` | latent features of queries; of keys and values | |
//! | `mlp` | the inner features of a feed-forward network | `model` |
//! | `vocab` | the vocabulary, or the classes of a classifier over it | `model` |

use std::cell::RefCell;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Mesh, Refusal, Shape, Sharding, Tensor};

use crate::library::NN;

/// A table that maps names of axes to axes of a mesh, like Flax's logical axis rules.
///
/// Rows are in the order of priority: within one value, each mesh axis splits one axis only, which
/// is that of the first row. A row's mesh axes that the mesh lacks are left out, so one table serves
/// all meshes. Names without a row are not split.
///
/// ```
/// use fulmen_nn::axes::AxisRules;
/// use fulmen_tensor::{Mesh, Shape};
///
/// let rules = AxisRules::default();
/// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
/// let sharding = |names: &[Option<&str>], dims: &[usize]| {
///     rules.sharding(names, &Shape::from(dims), &mesh).map(|sharding| sharding.to_string())
/// };
/// assert_eq!(sharding(&[Some("mlp"), Some("embed")], &[64, 16]).unwrap(), "[model]");
/// assert_eq!(sharding(&[Some("batch"), None, Some("mlp")], &[8, 5, 64]).unwrap(), "[data, -, model]");
/// let message = sharding(&[Some("batch"), Some("heads")], &[8, 7]).unwrap_err();
/// assert!(message.starts_with("the axis `heads` has size 7, which the mesh axis `model` (4 devices) does not divide"));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct AxisRules(Vec<(String, Vec<String>)>);

const DEFAULT: [(&str, &[&str]); 7] = [
    ("expert", &["expert"]),
    ("batch", &["data", "fsdp", "expert"]),
    ("length", &["context"]),
    ("heads", &["model"]),
    ("kv_heads", &["model"]),
    ("mlp", &["model"]),
    ("vocab", &["model"]),
];

impl Default for AxisRules {
    /// The rules for the names of ready-made models: data parallelism over `data` and `fsdp`,
    /// tensor parallelism as Megatron's over `model`, sequences split over `context`, and experts
    /// over `expert`, which splits samples outside of experts.
    fn default() -> AxisRules {
        AxisRules::new(DEFAULT)
    }
}

impl AxisRules {
    /// A table with these rows: a name, and the mesh axes that split it, slowest first.
    ///
    /// ```
    /// use fulmen_nn::axes::AxisRules;
    /// let rules = AxisRules::new([("batch", &["data"][..]), ("mlp", &["model"][..])]);
    /// assert_eq!(rules, AxisRules::new([]).set("batch", &["data"]).set("mlp", &["model"]));
    /// ```
    pub fn new<'a>(rows: impl IntoIterator<Item = (&'a str, &'a [&'a str])>) -> AxisRules {
        rows.into_iter().fold(AxisRules(Vec::new()), |rules, (name, axes)| rules.set(name, axes))
    }

    /// Replaces the row of a name, or adds one at the end.
    pub fn set(mut self, name: &str, mesh_axes: &[&str]) -> AxisRules {
        let axes = mesh_axes.iter().map(|&axis| axis.to_owned()).collect();
        match self.0.iter_mut().find(|row| row.0 == name) {
            Some(row) => row.1 = axes,
            None => self.0.push((name.to_owned(), axes)),
        }
        self
    }

    /// Removes the row of a name, which is then not split.
    ///
    /// ```
    /// use fulmen_nn::axes::AxisRules;
    /// let rules = AxisRules::default().without("vocab");
    /// assert!(rules.rows().iter().all(|(name, _)| name != "vocab"));
    /// ```
    pub fn without(mut self, name: &str) -> AxisRules {
        self.0.retain(|row| row.0 != name);
        self
    }

    /// The rows: a name, and the mesh axes that split it.
    pub fn rows(&self) -> &[(String, Vec<String>)] {
        &self.0
    }

    /// The sharding of a value whose axes have these names.
    ///
    /// # Errors
    /// A message, if there is not one name for each axis, or if the devices along the mesh axes do
    /// not divide the size of an axis.
    pub fn sharding<N: AsRef<str>>(
        &self,
        names: &[Option<N>],
        shape: &Shape,
        mesh: &Mesh,
    ) -> Result<Sharding, String> {
        check_names(names, shape)?;
        let split = self.mesh_axes(names, mesh);
        for ((name, axes), &size) in names.iter().zip(&split).zip(shape.dims()) {
            let Some(name) = name.as_ref().map(AsRef::as_ref) else { continue };
            let parts: usize = axes.iter().filter_map(|axis| mesh.size(axis)).product();
            if !size.is_multiple_of(parts) {
                let over = axes.join("+");
                let devices = quantity(parts, "device");
                return Err(format!(
                    "the axis `{name}` has size {size}, which the mesh axis `{over}` ({devices}) does not divide; change one \
                     of the two, or leave `{name}` whole: `axis_rules(AxisRules::default().without(\"{name}\"))`"
                ));
            }
        }
        Ok(Sharding::over(split))
    }

    /// The mesh axes that split each of the axes of one value.
    fn mesh_axes<N: AsRef<str>>(&self, names: &[Option<N>], mesh: &Mesh) -> Vec<Vec<&str>> {
        let mut taken: Vec<&str> = Vec::new();
        let mut split: Vec<Vec<&str>> = vec![Vec::new(); names.len()];
        for (name, mesh_axes) in &self.0 {
            let named = |other: &Option<N>| other.as_ref().is_some_and(|n| n.as_ref() == name);
            let Some(axis) = names.iter().position(named) else { continue };
            let is_free = |axis: &&str| mesh.size(axis).is_some() && !taken.contains(axis);
            split[axis] = mesh_axes.iter().map(String::as_str).filter(is_free).collect();
            taken.extend(&split[axis]);
        }
        split
    }

    /// Runs `record` with these rules and this mesh: [`constrain`] then applies them. The Trainer
    /// does this for the steps of a run whose strategy names mesh axes, such as `tp=8`, or for which
    /// a table was set. It is local to the thread, and ends with the call, even by a panic. On one
    /// device it has no effect.
    ///
    /// ```
    /// use fulmen_nn::axes::{AxisRules, axis_parts};
    /// use fulmen_tensor::Mesh;
    ///
    /// let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    /// assert_eq!(AxisRules::default().apply(&mesh, || axis_parts("heads")), 4);
    /// assert_eq!(axis_parts("heads"), 1);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn apply<T>(&self, mesh: &Mesh, record: impl FnOnce() -> T) -> T {
        self.put_in_force(mesh, true, record)
    }

    /// Like [`apply`](AxisRules::apply), but [`constrain`] does nothing. The rules only tell modules
    /// that compute the samples of each device on their own, as
    /// [`MixtureOfExperts`](crate::MixtureOfExperts) does, how the samples are split. The Trainer does
    /// this for the strategies `ddp` and `fsdp`.
    ///
    /// ```
    /// use fulmen_nn::axes::{AxisRules, axis_parts, constrain};
    /// use fulmen_tensor::{DType, Mesh, Tensor};
    ///
    /// let mesh = Mesh::new([("data", 8)])?;
    /// let x = Tensor::ones(DType::F32, [8, 4]);
    /// AxisRules::default().apply_without_constraints(&mesh, || {
    ///     assert_eq!(axis_parts("batch"), 8);
    ///     assert!(constrain(&x, ["batch", "embed"]).is(&x));
    /// });
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn apply_without_constraints<T>(&self, mesh: &Mesh, record: impl FnOnce() -> T) -> T {
        self.put_in_force(mesh, false, record)
    }

    fn put_in_force<T>(&self, mesh: &Mesh, has_constraints: bool, record: impl FnOnce() -> T) -> T {
        struct Restore(Option<InForce>);
        impl Drop for Restore {
            fn drop(&mut self) {
                IN_FORCE.set(self.0.take());
            }
        }
        let in_force = InForce { rules: self.clone(), mesh: mesh.clone(), has_constraints };
        let _restore = Restore(IN_FORCE.replace((mesh.num_devices() > 1).then_some(in_force)));
        record()
    }
}

/// Runs `record` with the rules in force, but without the row of a name. Generation does this with
/// `length`, because the next tokens are few.
///
/// ```
/// use fulmen_nn::axes::{AxisRules, axis_parts, without_rule};
/// use fulmen_tensor::Mesh;
///
/// let mesh = Mesh::new([("context", 2), ("model", 4)])?;
/// let parts = || ["length", "heads"].map(axis_parts);
/// assert_eq!(AxisRules::default().apply(&mesh, || without_rule("length", parts)), [1, 4]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub fn without_rule<T>(name: &str, record: impl FnOnce() -> T) -> T {
    match IN_FORCE.with_borrow(Clone::clone) {
        Some(InForce { rules, mesh, has_constraints }) => {
            rules.without(name).put_in_force(&mesh, has_constraints, record)
        }
        None => record(),
    }
}

/// The rules that a step is recorded with, and their mesh.
#[derive(Clone)]
struct InForce {
    rules: AxisRules,
    mesh: Mesh,
    /// Whether [`constrain`] applies them.
    has_constraints: bool,
}

thread_local! {
    static IN_FORCE: RefCell<Option<InForce>> = const { RefCell::new(None) };
}

/// Names the axes of an activation, so that it, and its gradient, are split by the rules in force
/// (Flax's `with_logical_constraint`). `None` is an axis that is not split. Without
/// [rules](AxisRules::apply), or on one device, it does nothing.
///
/// Without such names, XLA decides how activations between split weights are split, and often
/// gathers the weights instead. So name them before and after each product with a split weight.
///
/// Poisoned if there is not one name for each axis, or if the mesh does not divide an axis that it
/// splits.
///
/// ```
/// use fulmen_nn::{Linear, Module, activation, axes::constrain};
/// use fulmen_tensor::Tensor;
///
/// #[derive(Module)]
/// struct Mlp {
///     up: Linear,
///     down: Linear,
/// }
///
/// impl Mlp {
///     fn new(features: usize) -> Mlp {
///         let up = Linear::new(features, 4 * features).with_axes("mlp", "embed");
///         let down = Linear::new(4 * features, features).with_axes("embed", "mlp");
///         Mlp { up, down }
///     }
///
///     fn forward(&self, x: &Tensor) -> Tensor {
///         let hidden = constrain(self.up.forward(x), ["batch", "length", "mlp"]);
///         constrain(self.down.forward(activation::gelu(&hidden)), ["batch", "length", "embed"])
///     }
/// }
/// # let mlp = Mlp::new(4);
/// # mlp.initialize(0);
/// # let y = mlp.forward(&Tensor::ones(fulmen_tensor::DType::F32, [2, 3, 4]));
/// # assert_eq!(y.ty().to_string(), "f32[2, 3, 4]");
/// ```
#[track_caller]
pub fn constrain<'a, N: Into<Option<&'a str>>>(
    x: impl AsTensor,
    names: impl IntoIterator<Item = N>,
) -> Tensor {
    NN.record("constrain", || {
        let x = x.as_tensor().live()?;
        let names: Vec<Option<&str>> = names.into_iter().map(Into::into).collect();
        if !has_constraints() {
            check_names(&names, x.shape())?;
            return Ok(x.clone());
        }
        split(x, &names)
    })
}

/// Whether there are rules that [`constrain`] applies.
pub(crate) fn has_constraints() -> bool {
    IN_FORCE.with_borrow(|in_force| in_force.as_ref().is_some_and(|rules| rules.has_constraints))
}

/// The value, split by the rules in force, even if [`constrain`] does not apply them.
pub(crate) fn split(x: &Tensor, names: &[Option<&str>]) -> Result<Tensor, Refusal> {
    Ok(match sharding_in_force(names, x.shape())? {
        Some(sharding) => x.with_sharding(&sharding),
        None => x.clone(),
    })
}

/// The sharding that the rules in force give a value; `None` without rules.
pub(crate) fn sharding_in_force(
    names: &[Option<&str>],
    shape: &Shape,
) -> Result<Option<Sharding>, String> {
    check_names(names, shape)?;
    IN_FORCE.with_borrow(|in_force| {
        let Some(InForce { rules, mesh, .. }) = in_force else { return Ok(None) };
        rules.sharding(names, shape, mesh).map(Some)
    })
}

/// The sharding, by the rules in force, of a value whose first axis joins axes with the names
/// `joined`; `None` without rules.
pub(crate) fn joined_sharding(joined: &[&str], names: &[Option<&str>]) -> Option<Sharding> {
    IN_FORCE.with_borrow(|in_force| {
        let InForce { rules, mesh, .. } = in_force.as_ref()?;
        let all: Vec<Option<&str>> =
            joined.iter().map(|&n| Some(n)).chain(names.to_vec()).collect();
        let mut split = rules.mesh_axes(&all, mesh);
        let rest = split.split_off(joined.len());
        Some(Sharding::over(std::iter::once(split.concat()).chain(rest)))
    })
}

/// The numbers of parts into which the rules in force split the axes of one value; 1 without rules.
pub(crate) fn parts_of_axes<const N: usize>(names: [&str; N]) -> [usize; N] {
    IN_FORCE.with_borrow(|in_force| {
        let Some(InForce { rules, mesh, .. }) = in_force else { return [1; N] };
        let split = rules.mesh_axes(&names.map(Some), mesh);
        std::array::from_fn(|i| split[i].iter().filter_map(|axis| mesh.size(axis)).product())
    })
}

/// The number of parts into which the rules in force split an axis with this name; 1 without rules.
/// A module whose computation depends on it, such as a product that has several heads in one
/// weight, asks for it.
pub fn axis_parts(name: &str) -> usize {
    IN_FORCE.with_borrow(|in_force| {
        let Some(InForce { rules, mesh, .. }) = in_force else { return 1 };
        let row = rules.0.iter().find(|row| row.0 == name);
        let axes = row.into_iter().flat_map(|row| &row.1);
        axes.filter_map(|axis| mesh.size(axis)).product()
    })
}

/// Checks that there is a name, or `None`, for each axis.
pub(crate) fn check_names<N: AsRef<str>>(names: &[Option<N>], shape: &Shape) -> Result<(), String> {
    if names.len() == shape.rank() {
        return Ok(());
    }
    Err(format!("the names {} are not one for each axis of {shape}", listed(names)))
}

/// The names as a list: `[batch, -, mlp]`.
pub(crate) fn listed<N: AsRef<str>>(names: &[Option<N>]) -> String {
    let names: Vec<&str> =
        names.iter().map(|name| name.as_ref().map_or("-", AsRef::as_ref)).collect();
    format!("[{}]", names.join(", "))
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::DType;

    use super::*;

    fn mesh() -> Mesh {
        Mesh::new([("data", 2), ("fsdp", 2), ("context", 2), ("model", 2)]).unwrap()
    }

    #[track_caller]
    fn check(rules: &AxisRules, names: &[Option<&str>], dims: &[usize], expected: &str) {
        let sharding = rules.sharding(names, &Shape::from(dims), &mesh());
        let text = sharding.map_or_else(|message| message, |sharding| sharding.to_string());
        assert_eq!(text, expected);
    }

    #[test]
    fn a_row_splits_over_the_mesh_axes_that_earlier_rows_left() {
        let rules = AxisRules::default();
        let activation = [Some("batch"), Some("length"), Some("embed")];
        check(&rules, &activation, &[8, 4, 6], "[data+fsdp, context]");
        check(&rules, &[Some("heads"), Some("embed")], &[8, 6], "[model]");
        check(&rules, &[Some("unknown"), None], &[7, 7], "[]");
        // Both would take `model`.
        check(&rules, &[Some("vocab"), Some("mlp")], &[8, 6], "[-, model]");
        // The batch takes `fsdp`, so the features of an activation are whole.
        let fsdp = AxisRules::default().set("embed", &["fsdp"]);
        check(&fsdp, &activation, &[8, 4, 6], "[data+fsdp, context]");
        check(&fsdp, &[Some("mlp"), Some("embed")], &[8, 6], "[model, fsdp]");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let rules = AxisRules::default();
        let size = |name| format!("the axis `{name}` has size ");
        let message = |names: &[Option<&str>], dims: &[usize]| {
            rules.sharding(names, &Shape::from(dims), &mesh()).unwrap_err()
        };
        let text = message(&[Some("batch")], &[6]);
        assert!(
            text.starts_with(&(size("batch") + "6")) && text.contains("`data+fsdp` (4 devices)")
        );
        assert!(message(&[Some("heads")], &[7]).contains("`model` (2 devices) does not divide"));
        let text = message(&[Some("heads")], &[4, 4]);
        assert_eq!(text, "the names [heads] are not one for each axis of [4, 4]");
    }

    #[test]
    fn constraints_are_recorded_only_where_rules_are_in_force() {
        let x = Tensor::ones(DType::F32, [8, 4, 6]);
        let names = ["batch", "length", "embed"];
        assert!(constrain(&x, names).is(&x));
        let rules = AxisRules::default();
        let one = Mesh::new([("data", 1)]).unwrap();
        assert!(rules.apply(&one, || constrain(&x, names)).is(&x));
        let split = rules.apply(&mesh(), || constrain(&x, names));
        assert!(!split.is(&x) && split.fault().is_none());
        assert!(constrain(&x, names).is(&x));
        let line = line!() + 1;
        let wrong = rules.apply(&mesh(), || constrain(&x, [None, None, Some("batch")]));
        let fault = wrong.fault().unwrap();
        assert!(fault.message().contains("`batch` has size 6"), "{}", fault.message());
        assert_eq!(fault.location().line(), line);
        assert!(constrain(&x, ["batch"]).fault().is_some(), "a mistake is found without a mesh");
    }
}
