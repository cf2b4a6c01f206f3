//! The table of operations and dtypes in the book: which can be recorded, and which the CPU and TPU
//! compilers accept.
//!
//! The first case of a row is its template. Its float inputs (or its integers, if it has no floats)
//! take each dtype in turn. All that can be recorded for a dtype forms one program, which is halved
//! only if a compiler rejects it. An operation that can be recorded for a dtype but not compiled is
//! an error.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fulmen_catalogue::{Attrs, Case, Family, Row, families, tpu_supports};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Client, CompileOptions, Effort, Plugin, Topology};
use fulmen_tensor::{DType, Function, Tensor, TensorType, grad};

use crate::kept_answers::answer;
use crate::libtpu::libtpu;

/// The columns: kinds of dtypes. Dtypes that a TPU supports are apart from the others.
fn columns() -> Vec<(String, Vec<DType>)> {
    let groups: [fn(&DType) -> bool; 4] = [
        |d| d.is_integer() && !d.is_unsigned(),
        |d| d.is_unsigned(),
        |d| *d == DType::Bool,
        |d| d.is_complex(),
    ];
    let column = |dtypes: Vec<DType>| {
        let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
        (names.join(" "), dtypes)
    };
    let mut columns: Vec<_> = DType::all()
        .filter(|d| d.is_float() && tpu_supports(*d))
        .map(|d| column(vec![d]))
        .collect();
    columns.extend(
        groups.map(|fits| column(DType::all().filter(|d| fits(d) && tpu_supports(*d)).collect())),
    );
    let (integers, others): (Vec<_>, Vec<_>) =
        DType::all().filter(|d| !tpu_supports(*d)).partition(|d: &DType| d.is_integer());
    columns.extend(others.into_iter().map(|d| column(vec![d])));
    columns.push(column(integers));
    columns
}

/// An operation at its template.
struct Template<'a> {
    row: &'a Row,
    case: Case,
}

/// What a program contains, or what can be recorded.
#[derive(Clone, Copy)]
struct Parts {
    values: bool,
    gradients: bool,
}

/// An operation at one dtype.
struct Item<'a> {
    row: &'a Row,
    dtype: DType,
    attrs: Attrs,
    types: Vec<TensorType>,
    /// The inputs that take the dtype.
    recast: Vec<usize>,
    parts: Parts,
}

impl Template<'_> {
    fn item(&self, dtype: DType) -> Item<'_> {
        let row = self.row;
        let mut attrs = self.case.attrs.clone();
        let mut types = self.case.types().collect::<Vec<_>>();
        let inputs_where = |fits: fn(DType) -> bool| {
            (0..types.len()).filter(|&i| fits(types[i].dtype)).collect::<Vec<_>>()
        };
        let floats = inputs_where(|d| !(d.is_integer() || d == DType::Bool));
        let recast = if attrs.has("dtype") {
            attrs.set("dtype", dtype.name());
            floats
        } else if !floats.is_empty() {
            floats
        } else if types.iter().any(|ty| ty.dtype.is_integer()) {
            inputs_where(DType::is_integer)
        } else {
            inputs_where(|d| d == DType::Bool)
        };
        for &i in &recast {
            types[i].dtype = dtype;
        }
        Item { row, dtype, attrs, types, recast, parts: Parts { values: true, gradients: true } }
    }
}

impl Item<'_> {
    fn with_parts(&self, parts: Parts) -> Item<'_> {
        Item {
            attrs: self.attrs.clone(),
            types: self.types.clone(),
            recast: self.recast.clone(),
            parts,
            ..*self
        }
    }

    /// The values and gradients. They are empty if recording poisons them, or if there are none.
    fn record(&self, x: &[Tensor]) -> Option<(Vec<Tensor>, Option<Vec<Tensor>>)> {
        let values = self.row.record(x, &self.attrs);
        if values.iter().any(|y| y.fault().is_some()) {
            return None;
        }
        let has_gradient = |d: DType| d.is_float() || d.is_complex();
        let parts =
            |y: &Tensor| if y.dtype().is_complex() { y.real() + y.imag() } else { y.clone() };
        let floats = values.iter().filter(|y| has_gradient(y.dtype())).map(|y| parts(y).sum_all());
        let wrt: Vec<&Tensor> =
            self.recast.iter().map(|&i| &x[i]).filter(|x| has_gradient(x.dtype())).collect();
        let loss = floats.reduce(|a, b| a + b).filter(|_| !wrt.is_empty());
        let gradients =
            loss.map(|loss| grad(&loss, &wrt)).filter(|g| g.iter().all(|g| g.fault().is_none()));
        Some((values, gradients))
    }

    /// What can be recorded with this dtype.
    fn recordable_parts(&self) -> Parts {
        let x: Vec<Tensor> =
            self.types.iter().map(|ty| Tensor::placeholder("x", ty.clone())).collect();
        // Without an input to convert, the operation has a fixed result dtype.
        let fixed = self.recast.is_empty() && !self.attrs.has("dtype");
        match self.record(&x) {
            Some((values, _)) if fixed && values[0].dtype() != self.dtype => {
                Parts { values: false, gradients: false }
            }
            Some((_, gradients)) => Parts { values: true, gradients: gradients.is_some() },
            None => Parts { values: false, gradients: false },
        }
    }
}

/// One program for several items.
fn program(items: &[Item<'_>]) -> Function {
    let types: Vec<TensorType> = items.iter().flat_map(|item| item.types.clone()).collect();
    Function::trace("table", &types, |x| {
        let mut rest = &x[..];
        let mut results = Vec::new();
        for item in items {
            let (x, later) = rest.split_at(item.types.len());
            rest = later;
            let (values, gradients) = item.record(x).unwrap();
            results.extend(values.into_iter().filter(|_| item.parts.values));
            results.extend(gradients.into_iter().flatten().filter(|_| item.parts.gradients));
        }
        results
    })
}

/// Compiles for one kind of device. Returns `None`, or the error.
trait Compiler {
    fn compile(&self, function: &Function) -> Result<(), String>;
}

/// The lowest effort, since it does not affect whether a program compiles.
fn options() -> CompileOptions {
    CompileOptions::new().partitions(1).optimization(Effort::O0)
}

struct Cpu {
    client: Client,
    topology: Topology,
}

impl Compiler for Cpu {
    fn compile(&self, function: &Function) -> Result<(), String> {
        // Those of the other tests, which do not affect whether it compiles either.
        let options = options()
            .override_flag("xla_backend_optimization_level", 0)
            .override_flag("xla_llvm_disable_expensive_passes", true);
        accepts(&self.topology, function, &options, |text| {
            self.client.compile(text, &options).map(drop)
        })
    }
}

struct Tpu {
    plugin: Plugin,
    topology: Topology,
}

impl Compiler for Tpu {
    fn compile(&self, function: &Function) -> Result<(), String> {
        let options = options();
        accepts(&self.topology, function, &options, |text| {
            self.plugin.compile(&self.topology, text, &options).map(drop)
        })
    }
}

/// Whether a compiler accepts the program, or its error.
fn accepts(
    topology: &Topology,
    function: &Function,
    options: &CompileOptions,
    compile: impl FnOnce(&str) -> fulmen_pjrt::Result<()>,
) -> Result<(), String> {
    let text = function.stablehlo().unwrap();
    let ask = || compile(&text).map(|()| String::new()).map_err(|error| error.to_string());
    answer("whether it compiles", topology, &text, options, ask).map(drop)
}

/// The items that do not compile, each with the error.
fn refused(compiler: &dyn Compiler, items: &[Item<'_>]) -> Vec<String> {
    let items: Vec<Item<'_>> = items
        .iter()
        .filter(|item| item.parts.values || item.parts.gradients)
        .map(|item| item.with_parts(item.parts))
        .collect();
    let why = match items.as_slice() {
        [] => return Vec::new(),
        _ => compiler.compile(&program(&items)).err(),
    };
    match (why, items.as_slice()) {
        (None, _) => Vec::new(),
        (Some(why), [item]) => {
            let values_alone = Parts { values: true, gradients: false };
            let values_compile = item.parts.gradients
                && compiler.compile(&program(&[item.with_parts(values_alone)])).is_ok();
            let part = if values_compile { "the gradient of " } else { "" };
            vec![format!("{part}{} at {:?}: {why}", item.row.op, item.types)]
        }
        (Some(_), many) => {
            let (first, second) = many.split_at(many.len() / 2);
            [refused(compiler, first), refused(compiler, second)].concat()
        }
    }
}

/// `∇` for a value with a gradient, `✓` for a value alone.
fn mark(parts: Parts) -> Mark {
    parts.values.then_some(if parts.gradients { "∇" } else { "✓" })
}

/// The compilers that must accept every operation of the table.
struct Compilers<'a> {
    cpu: &'a dyn Compiler,
    tpu: &'a dyn Compiler,
}

/// The mark of a dtype. Empty if recording rejects the dtype.
type Mark = Option<&'static str>;

/// The marks of every template for one dtype, after the compilers have accepted the programs.
fn marks_of(
    dtype: DType,
    templates: &[Template<'_>],
    compilers: &Compilers<'_>,
    wrong: &mut Vec<String>,
) -> Vec<Mark> {
    let mut items: Vec<Item<'_>> = templates.iter().map(|template| template.item(dtype)).collect();
    for item in &mut items {
        item.parts = item.recordable_parts();
    }
    wrong.extend(refused(compilers.cpu, &items));
    if tpu_supports(dtype) {
        wrong.extend(refused(compilers.tpu, &items));
    }
    items.iter().map(|item| mark(item.parts)).collect()
}

/// A cell for several dtypes, which are listed if their marks differ.
fn cell(marks: &[(DType, Mark)]) -> String {
    if marks.iter().all(|m| m.1 == marks[0].1) {
        return marks[0].1.unwrap_or_default().to_owned();
    }
    let mut dtypes_by_mark: Vec<(&str, Vec<&str>)> = Vec::new();
    for (dtype, mark) in marks.iter().filter_map(|(dtype, mark)| Some((dtype, (*mark)?))) {
        match dtypes_by_mark.iter_mut().find(|f| f.0 == mark) {
            Some(known) => known.1.push(dtype.name()),
            None => dtypes_by_mark.push((mark, vec![dtype.name()])),
        }
    }
    let spelled: Vec<String> = dtypes_by_mark
        .iter()
        .map(|(mark, dtypes)| format!("{mark} {}", dtypes.join(" ")))
        .collect();
    spelled.join(", ")
}

fn templates(families: &[Family]) -> Vec<Template<'_>> {
    let mut templates = Vec::new();
    let mut named = BTreeSet::new();
    for family in families {
        let cases = family.cases();
        for row in family.rows.iter().filter(|row| !row.methods.is_empty()) {
            let mut fitting = cases.iter().filter(|case| case.op == row.op);
            let has_elements = |case: &&Case| case.types().all(|ty| ty.shape.num_elements() > 0);
            let has_floats =
                |case: &&Case| has_elements(case) && case.types().any(|ty| ty.dtype.is_float());
            let case = fitting
                .clone()
                .find(has_floats)
                .or_else(|| fitting.clone().find(has_elements))
                .or_else(|| fitting.next())
                .unwrap();
            // Rows of one function would give the same line.
            if named.insert(row.methods) {
                templates.push(Template { row, case: case.clone() });
            }
        }
    }
    templates
}

/// The table that the code implies.
fn table(compilers: &Compilers<'_>) -> String {
    let families = families();
    let templates = templates(&families);
    let columns = columns();
    let heads: String = columns.iter().map(|(name, _)| format!(" {name} |")).collect();
    let mut text = format!("| operation |{heads}\n| --- |{}\n", " --- |".repeat(columns.len()));
    let mut wrong = Vec::new();
    let mut column_marks = |dtypes: &[DType]| -> Vec<Vec<Mark>> {
        dtypes.iter().map(|&dtype| marks_of(dtype, &templates, compilers, &mut wrong)).collect()
    };
    let marks_by_column: Vec<Vec<Vec<Mark>>> =
        columns.iter().map(|(_, dtypes)| column_marks(dtypes)).collect();
    assert!(
        wrong.is_empty(),
        "these operations can be recorded but do not compile:\n{}",
        wrong.join("\n")
    );
    for (i, template) in templates.iter().enumerate() {
        let names: Vec<String> =
            template.row.methods.iter().map(|name| format!("`{name}`")).collect();
        text += &format!("| {} |", names.join(" "));
        for ((_, dtypes), marks_by_column) in columns.iter().zip(&marks_by_column) {
            let marks: Vec<_> = dtypes
                .iter()
                .zip(marks_by_column)
                .map(|(&d, marks_by_column)| (d, marks_by_column[i]))
                .collect();
            text += &format!(" {} |", cell(&marks));
        }
        text += "\n";
    }
    text
}

#[test]
fn the_table_in_the_book_is_what_compiles() {
    let Some(plugin) = libtpu() else { return };
    let topology = plugin.topology("v5e:1x1").unwrap_or_else(|error| panic!("{error}"));
    let tpu = Tpu { plugin, topology };
    let client =
        Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap().create_client(&[]).unwrap();
    let cpu = Cpu { topology: client.topology().unwrap(), client };
    let expected = table(&Compilers { cpu: &cpu, tpu: &tpu });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/operations.md");
    let chapter = fs::read_to_string(&path).unwrap();
    let [before, after] = ["<!-- made by the test -->\n", "<!-- until here -->\n"]
        .map(|mark| chapter.find(mark).unwrap());
    let start = before + chapter[before..].find('\n').unwrap() + 1;
    let end = after;
    if chapter[start..end] == expected {
        return;
    }
    let lines: BTreeSet<&str> = chapter[start..end].lines().collect();
    let new: Vec<&str> = expected.lines().filter(|line| !lines.contains(line)).collect();
    let update = std::env::var("UPDATE_EXPECT").as_deref() == Ok("1");
    assert!(
        update,
        "the table in the book does not match the code; set UPDATE_EXPECT=1 to write it again. New lines:\n{}",
        new.join("\n")
    );
    fs::write(&path, [&chapter[..start], &expected, &chapter[end..]].concat()).unwrap();
}
