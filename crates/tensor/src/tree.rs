//! [`Tree`]: a value that is made of tensors. Bodies of control flow take and return trees.

use crate::{AsTensor, Tensor, TensorType};

/// A value that is made of tensors: a tensor, a tuple, an array, a `Vec` or an `Option` of trees, or
/// a struct of trees (JAX's pytree).
///
/// [`cond`](crate::cond()), [`scan`](crate::scan()), [`call`](crate::call()) and the other functions
/// with bodies pass trees to a body, and return the tree that it returns. So values keep their names
/// and need no positions.
///
/// ```
/// use fulmen_tensor::{Tensor, Tree, scan};
///
/// #[derive(Tree)]
/// struct Moments {
///     sum: Tensor,
///     squares: Tensor,
/// }
///
/// let zero = Tensor::scalar(0.0f32);
/// let init = Moments { sum: zero.clone(), squares: zero };
/// assert_eq!(init.names(), ["sum", "squares"]);
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
/// let (moments, ()) = scan(init, &x, |moments, x| {
///     (Moments { sum: moments.sum + &x, squares: moments.squares + &x * &x }, ())
/// });
/// assert_eq!(moments.sum.eval()?.to_vec::<f32>()?, [6.0]);
/// assert_eq!(moments.squares.eval()?.to_vec::<f32>()?, [14.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
///
/// `#[derive(Tree)]` implements it for a struct whose fields are trees. A field with
/// `#[tree(skip)]` does not belong to the tree: it is cloned.
pub trait Tree: Sized + IntoTree<Tree = Self> {
    /// The same tree with `f` of each tensor in its place.
    #[must_use]
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self;

    /// The names of the tensors, in the order of [`flatten`](Tree::flatten): fields and positions,
    /// joined by dots. The name of a tensor on its own is empty.
    fn names(&self) -> Vec<String>;

    /// The tensors.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor, Tree};
    ///
    /// let x = Tensor::zeros(DType::F32, [2]);
    /// let tree = (x.clone(), vec![x.clone(), x]);
    /// assert_eq!(tree.flatten().len(), 3);
    /// assert_eq!(tree.names(), ["0", "1.0", "1.1"]);
    /// ```
    fn flatten(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        let _ = self.map_tensors(&mut |tensor| {
            tensors.push(tensor.clone());
            tensor.clone()
        });
        tensors
    }

    /// The same tree with these tensors, in the order of [`flatten`](Tree::flatten). If there are
    /// too few, the others stay.
    #[must_use]
    fn unflatten(&self, tensors: impl IntoIterator<Item = Tensor>) -> Self {
        let mut tensors = tensors.into_iter();
        self.map_tensors(&mut |tensor| tensors.next().unwrap_or_else(|| tensor.clone()))
    }
}

/// What can be passed as a [`Tree`]: a tree, a reference to a tensor, a type, and tuples, arrays and
/// lists of such values. A type is a placeholder, for an input of a
/// [`Function`](crate::Function::trace).
///
/// | argument | tree |
/// | --- | --- |
/// | `x` or `&x` | [`Tensor`] |
/// | `(&x, y)` | `(Tensor, Tensor)` |
/// | `[&x, &y]` | `[Tensor; 2]` |
/// | `&[&x, &y]`, `&list` | `Vec<Tensor>` |
/// | a [`TensorType`] or a reference to one | [`Tensor`] |
/// | `()` | `()` |
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not made of tensors",
    label = "expected a tensor, or a tuple, array, list or struct of tensors",
    note = "a struct of tensors needs `#[derive(Tree)]`"
)]
pub trait IntoTree: Sized {
    /// The tree.
    type Tree: Tree;

    /// The value as a tree.
    fn into_tree(self) -> Self::Tree;
}

/// The names of a tree's tensors within a larger tree, where the tree is called `name`.
#[doc(hidden)]
pub fn names_within(name: &str, tree: &impl Tree) -> Vec<String> {
    let within =
        |own: String| if own.is_empty() { name.to_owned() } else { format!("{name}.{own}") };
    tree.names().into_iter().map(within).collect()
}

/// Names a tensor of a tree in a message: `carry 0`, `carry sum`, or `the carry` for a tree that is
/// a tensor.
pub(crate) fn label(kind: &str, name: &str) -> String {
    if name.is_empty() { format!("the {kind}") } else { format!("{kind} {name}") }
}

/// The same tree with placeholders of the types of its tensors, named as inputs of a function.
/// Poisoned tensors stay.
pub(crate) fn placeholders<T: Tree>(tree: &T) -> T {
    let placeholder = |(tensor, name): (Tensor, String)| {
        if tensor.fault().is_some() {
            return tensor;
        }
        let name = if name.is_empty() { "input".to_owned() } else { format!("input {name}") };
        Tensor::placeholder(name, tensor.ty().clone())
    };
    tree.unflatten(tree.flatten().into_iter().zip(tree.names()).map(placeholder))
}

fn names_of_list<T: Tree>(trees: &[T]) -> Vec<String> {
    trees.iter().enumerate().flat_map(|(i, tree)| names_within(&i.to_string(), tree)).collect()
}

impl Tree for Tensor {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        f(self)
    }
    fn names(&self) -> Vec<String> {
        vec![String::new()]
    }
}

impl IntoTree for Tensor {
    type Tree = Tensor;
    fn into_tree(self) -> Tensor {
        self
    }
}

impl<T: AsTensor + ?Sized> IntoTree for &T {
    type Tree = Tensor;
    fn into_tree(self) -> Tensor {
        self.as_tensor().clone()
    }
}

impl IntoTree for TensorType {
    type Tree = Tensor;
    #[track_caller]
    fn into_tree(self) -> Tensor {
        Tensor::placeholder(self.to_string(), self)
    }
}

impl IntoTree for &TensorType {
    type Tree = Tensor;
    #[track_caller]
    fn into_tree(self) -> Tensor {
        self.clone().into_tree()
    }
}

impl<T: Tree> Tree for Vec<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Vec<T> {
        self.iter().map(|tree| tree.map_tensors(f)).collect()
    }
    fn names(&self) -> Vec<String> {
        names_of_list(self)
    }
}

impl<T: IntoTree> IntoTree for Vec<T> {
    type Tree = Vec<T::Tree>;
    fn into_tree(self) -> Vec<T::Tree> {
        self.into_iter().map(T::into_tree).collect()
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> [T; N] {
        self.each_ref().map(|tree| tree.map_tensors(f))
    }
    fn names(&self) -> Vec<String> {
        names_of_list(self)
    }
}

impl<T: IntoTree, const N: usize> IntoTree for [T; N] {
    type Tree = [T::Tree; N];
    fn into_tree(self) -> [T::Tree; N] {
        self.map(T::into_tree)
    }
}

impl<'a, T> IntoTree for &'a [T]
where
    &'a T: IntoTree,
{
    type Tree = Vec<<&'a T as IntoTree>::Tree>;
    fn into_tree(self) -> Self::Tree {
        self.iter().map(IntoTree::into_tree).collect()
    }
}

impl<'a, T, const N: usize> IntoTree for &'a [T; N]
where
    &'a T: IntoTree,
{
    type Tree = Vec<<&'a T as IntoTree>::Tree>;
    fn into_tree(self) -> Self::Tree {
        self.as_slice().into_tree()
    }
}

impl<'a, T> IntoTree for &'a Vec<T>
where
    &'a T: IntoTree,
{
    type Tree = Vec<<&'a T as IntoTree>::Tree>;
    fn into_tree(self) -> Self::Tree {
        self.as_slice().into_tree()
    }
}

impl<T: Tree> Tree for Option<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Option<T> {
        self.as_ref().map(|tree| tree.map_tensors(f))
    }
    fn names(&self) -> Vec<String> {
        self.as_ref().map(T::names).unwrap_or_default()
    }
}

impl<T: IntoTree> IntoTree for Option<T> {
    type Tree = Option<T::Tree>;
    fn into_tree(self) -> Option<T::Tree> {
        self.map(T::into_tree)
    }
}

impl Tree for () {
    fn map_tensors(&self, _: &mut dyn FnMut(&Tensor) -> Tensor) {}
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

impl IntoTree for () {
    type Tree = ();
    fn into_tree(self) {}
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*))*) => {$(
        impl<$($name: Tree),*> Tree for ($($name,)*) {
            fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
                ($(self.$index.map_tensors(f),)*)
            }
            fn names(&self) -> Vec<String> {
                let lists: Vec<Vec<String>> =
                    vec![$(names_within(stringify!($index), &self.$index)),*];
                lists.concat()
            }
        }

        impl<$($name: IntoTree),*> IntoTree for ($($name,)*) {
            type Tree = ($($name::Tree,)*);
            fn into_tree(self) -> Self::Tree {
                ($(self.$index.into_tree(),)*)
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}
