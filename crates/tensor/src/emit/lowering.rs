//! [`Lowering`]: what an operation needs to write its own statement.

use std::panic::Location;

use super::statements::{Body, Line};
use crate::hash::IdMap;
use crate::region::Region;
use crate::{DType, MatmulPrecision, Mesh, Tensor, TensorType};

/// The program under construction, as the statement of an operation needs it. Mistakes in an
/// expression are remembered until the statement is written.
pub(crate) trait Writer {
    fn mesh(&self) -> &Mesh;

    fn precision(&self) -> MatmulPrecision;

    /// The number of the next value, unique in its function.
    fn next_value(&mut self) -> usize;

    /// The number of the next scalar constant, unique in its function.
    fn next_constant(&mut self) -> usize;

    /// Writes the statements that compute `results`, and returns the names of the resulting values.
    /// `leaves` maps each parameter to its name.
    fn write(
        &mut self,
        results: &[Tensor],
        leaves: &IdMap<String>,
        scope: &mut Body,
    ) -> Option<Vec<String>>;

    /// Writes a private function that computes a region, unless one with the same text exists.
    /// Returns the function's name: `name`, with a number if it is taken.
    fn write_function(&mut self, name: &str, region: &Region) -> String;

    /// Adds the private function `name` to the module, unless it exists. `define` returns its whole
    /// text.
    fn write_helper(&mut self, name: &str, define: &dyn Fn(&str) -> String) -> String;
}

/// One operation's view of the program under construction.
pub(crate) struct Lowering<'a> {
    pub(super) operands: Vec<(String, &'a TensorType)>,
    pub(super) results: &'a [TensorType],
    pub(super) name: &'static str,
    pub(super) location: &'static Location<'static>,
    pub(super) program: &'a mut dyn Writer,
    /// The block that receives statements.
    pub(super) scope: Body,
    pub(super) blocks: Vec<(Vec<Line>, String)>,
    pub(super) extra: usize,
}

impl Lowering<'_> {
    /// The name of the `i`-th operand.
    pub(crate) fn operand(&self, i: usize) -> &str {
        &self.operands[i].0
    }

    /// The type of the `i`-th operand.
    pub(crate) fn operand_type(&self, i: usize) -> &TensorType {
        self.operands[i].1
    }

    /// All operands' names, separated by commas.
    pub(crate) fn operands(&self) -> String {
        self.operands.iter().map(|o| o.0.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The type of the first result.
    pub(crate) fn result(&self) -> &TensorType {
        &self.results[0]
    }

    /// The types of all results.
    pub(crate) fn results(&self) -> &[TensorType] {
        self.results
    }

    /// The mesh of the program's devices.
    pub(crate) fn mesh(&self) -> &Mesh {
        self.program.mesh()
    }

    /// Whether the program is for several devices, so that shardings have an effect.
    pub(crate) fn is_partitioned(&self) -> bool {
        self.program.mesh().num_devices() > 1
    }

    /// The number of mesh axes with several devices.
    pub(crate) fn split_mesh_axes(&self) -> usize {
        self.program.mesh().axes().iter().filter(|axis| axis.1 > 1).count()
    }

    /// The right side of a statement that has the value of the first result, and hides from it how
    /// later values are split.
    pub(crate) fn split_by_operands(&self, name: &str) -> String {
        let ty = self.result().stablehlo();
        format!("sdy.propagation_barrier {name} allowed_direction=FORWARD : {ty}")
    }

    /// The right side of a statement with the value of `product`, which sums over an axis.
    ///
    /// On a mesh of three axes, XLA's partitioner adds up too little where the sum is over a split
    /// axis, and a later value asks for the result split over the same axis of the mesh. JAX has
    /// this fault, too: 1 of 130 random shardings of a product of stacks, 2 of 500 of a product of
    /// matrices; none of 729 on two axes. So the operands alone decide how the result is split;
    /// then it is moved.
    pub(crate) fn split_product(&mut self, product: String) -> String {
        if self.split_mesh_axes() < 3 {
            return product;
        }
        let product = self.statement(product);
        self.split_by_operands(&product)
    }

    /// StableHLO's name for the precision of a product of `dtype`.
    pub(crate) fn precision(&self, dtype: DType) -> &'static str {
        self.program.precision().stablehlo(dtype)
    }

    /// `(operand types) -> result types`.
    pub(crate) fn signature(&self) -> String {
        let operands: Vec<_> = self.operands.iter().map(|o| o.1.stablehlo()).collect();
        let result_types: Vec<_> = self.results.iter().map(TensorType::stablehlo).collect();
        let results = match result_types.as_slice() {
            [one] => one.clone(),
            many => format!("({})", many.join(", ")),
        };
        format!("({}) -> {results}", operands.join(", "))
    }

    /// The name of a scalar constant, such as the initial value of a reduction. `literal` is the
    /// number as MLIR writes it.
    pub(crate) fn constant(&mut self, dtype: DType, literal: &str) -> String {
        let statement = format!(
            "stablehlo.constant dense<{literal}> : {}",
            TensorType::scalar(dtype).stablehlo()
        );
        if let Some(name) = self.scope.constants.get(&statement) {
            return name.clone();
        }
        let name = format!("%c{}", self.program.next_constant());
        self.push(format!("{name} = {statement}"));
        self.scope.constants.insert(statement, name.clone());
        name
    }

    /// Adds a statement before this operation's own, or to the open block. Returns the name of its
    /// only result.
    pub(crate) fn statement(&mut self, right: impl AsRef<str>) -> String {
        let name = self.fresh();
        self.push(format!("{name} = {}", right.as_ref()));
        name
    }

    /// A unique name within the function, for an argument of a block.
    pub(crate) fn fresh(&mut self) -> String {
        format!("%{}", self.program.next_value())
    }

    /// Declares that the statement has `extra` results after those of the operation.
    pub(crate) fn extra_results(&mut self, extra: usize) {
        self.extra = extra;
    }

    /// Adds a region to this operation's statement. `write` writes its statements and returns the
    /// names and types of its results. The text `after` closes the region.
    pub(crate) fn block(
        &mut self,
        after: String,
        write: impl FnOnce(&mut Self) -> Vec<(String, TensorType)>,
    ) {
        let outer = std::mem::take(&mut self.scope);
        let returned = write(self);
        let names: Vec<_> = returned.iter().map(|r| r.0.as_str()).collect();
        let types: Vec<_> = returned.iter().map(|r| r.1.stablehlo()).collect();
        self.push(match returned.len() {
            0 => "stablehlo.return".to_owned(),
            _ => format!("stablehlo.return {} : {}", names.join(", "), types.join(", ")),
        });
        let inner = std::mem::replace(&mut self.scope, outer);
        self.blocks.push((inner.lines, after));
    }

    /// Writes the statements of a region; `arguments` are the names of its parameters. Returns the
    /// names and types of its results.
    pub(crate) fn region(
        &mut self,
        region: &Region,
        arguments: &[String],
    ) -> Vec<(String, TensorType)> {
        self.expression(&region.parameters, arguments, &region.results)
    }

    /// Like [`Lowering::region`], for any parameters and results.
    pub(crate) fn expression(
        &mut self,
        parameters: &[Tensor],
        arguments: &[String],
        results: &[Tensor],
    ) -> Vec<(String, TensorType)> {
        let leaves =
            parameters.iter().zip(arguments).map(|(p, name)| (p.node.id, name.clone())).collect();
        let names = self.program.write(results, &leaves, &mut self.scope).unwrap_or_default();
        names.into_iter().zip(results.iter().map(|t| t.ty().clone())).collect()
    }

    /// The name of a private function that computes a region: `name`, with a number if it is taken.
    /// Regions with the same text share one function.
    pub(crate) fn function(&mut self, name: &str, region: &Region) -> String {
        self.program.write_function(name, region)
    }

    /// The name of the private function that `define` returns, from its name: `name`, with a number if
    /// it is taken. Equal definitions share one function.
    pub(crate) fn helper(&mut self, name: &str, define: impl Fn(&str) -> String) -> String {
        self.program.write_helper(name, &define)
    }

    fn push(&mut self, text: String) {
        self.scope.lines.push(Line {
            text,
            blocks: Vec::new(),
            location: Some((self.name, self.location)),
        });
    }
}
