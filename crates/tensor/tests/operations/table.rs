//! The book's table of operations and dtypes: what is recorded, and what the compilers for CPUs and TPUs take.
//!
//! The first case of a row is its template: its float inputs (integers, where it has no floats) become each dtype in turn.
//! All that is recorded for a dtype is one program, which is halved only where a compiler refuses it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fulmen_pjrt::{CompileOptions, Effort, Plugin, Topology};
use fulmen_tensor::{DType, Function, Runtime, Tensor, TensorType, grad};

use crate::attrs::Attrs;
use crate::case::Case;
use crate::catalogue::{Family, Row, families};
use crate::libtpu::libtpu;

/// The columns and the dtypes in each.
fn columns() -> Vec<(String, Vec<DType>)> {
    let group = |name: &str, fits: fn(&DType) -> bool| (name.to_owned(), DType::all().filter(fits).collect());
    let mut columns: Vec<(String, Vec<DType>)> =
        DType::all().filter(|d| d.is_float()).map(|d| (d.name().to_owned(), vec![d])).collect();
    columns.push(group("signed integers", |d| d.is_integer() && !d.is_unsigned()));
    columns.push(group("unsigned integers", |d| d.is_unsigned()));
    columns.push(group("bool", |d| *d == DType::Bool));
    let others = group("complex", |d| !d.is_float() && !d.is_integer() && *d != DType::Bool);
    columns.extend((!others.1.is_empty()).then_some(others));
    columns
}

/// An operation at its template.
struct Template<'a> {
    row: &'a Row,
    case: Case,
}

/// An operation at one dtype.
struct Item<'a> {
    row: &'a Row,
    attrs: Attrs,
    types: Vec<TensorType>,
    /// The inputs that have the dtype.
    recast: Vec<usize>,
    /// Whether values, and whether gradients are part of the program.
    parts: (bool, bool),
}

impl Template<'_> {
    fn at(&self, dtype: DType) -> Item<'_> {
        let (row, mut attrs, mut types) = (self.row, self.case.attrs.clone(), self.case.types().collect::<Vec<_>>());
        let of = |fits: fn(DType) -> bool| (0..types.len()).filter(|&i| fits(types[i].dtype)).collect::<Vec<_>>();
        let floats = of(|d| !(d.is_integer() || d == DType::Bool));
        let recast = match floats.is_empty() {
            _ if attrs.has("dtype") => {
                attrs.set("dtype", dtype.name());
                floats
            }
            true if types.iter().any(|ty| ty.dtype.is_integer()) => of(DType::is_integer),
            true => of(|d| d == DType::Bool),
            false => floats,
        };
        for &i in &recast {
            types[i].dtype = dtype;
        }
        Item { row, attrs, types, recast, parts: (true, true) }
    }
}

impl Item<'_> {
    fn with(&self, parts: (bool, bool)) -> Item<'_> {
        Item { row: self.row, attrs: self.attrs.clone(), types: self.types.clone(), recast: self.recast.clone(), parts }
    }

    /// Values and gradients, which are none where they are refused or where there is none to have.
    fn record(&self, x: &[Tensor]) -> Option<(Vec<Tensor>, Option<Vec<Tensor>>)> {
        let values = self.row.record(x, &self.attrs);
        if values.iter().any(|y| y.fault().is_some()) {
            return None;
        }
        let floats = values.iter().filter(|y| y.dtype().is_float()).map(Tensor::sum_all);
        let wrt: Vec<&Tensor> = self.recast.iter().map(|&i| &x[i]).filter(|x| x.dtype().is_float()).collect();
        let loss = floats.reduce(|a, b| a + b).filter(|_| !wrt.is_empty());
        let gradients = loss.map(|loss| grad(&loss, &wrt)).filter(|g| g.iter().all(|g| g.fault().is_none()));
        Some((values, gradients))
    }

    /// Whether values and gradients are recorded at this dtype.
    fn recorded(&self) -> (bool, bool) {
        let x: Vec<Tensor> = self.types.iter().map(|ty| Tensor::placeholder("x", ty.clone())).collect();
        self.record(&x).map_or((false, false), |(_, gradients)| (true, gradients.is_some()))
    }
}

/// The program of several items.
fn program(items: &[Item<'_>]) -> Function {
    let types: Vec<TensorType> = items.iter().flat_map(|item| item.types.clone()).collect();
    Function::trace("table", &types, |mut rest| {
        let mut results = vec![];
        for item in items {
            let (x, later) = rest.split_at(item.types.len());
            rest = later;
            let (values, gradients) = item.record(x).unwrap();
            results.extend(values.into_iter().filter(|_| item.parts.0));
            results.extend(gradients.into_iter().flatten().filter(|_| item.parts.1));
        }
        results
    })
}

/// What compiles for one kind of device.
trait Compiler {
    fn takes(&self, function: &Function) -> bool;
}

impl Compiler for Runtime {
    fn takes(&self, function: &Function) -> bool {
        self.compile(function).map_err(|error| println!("CPU: {error}")).is_ok()
    }
}

struct Tpu {
    plugin: Plugin,
    topology: Topology,
}

impl Compiler for Tpu {
    fn takes(&self, function: &Function) -> bool {
        let options = CompileOptions::new().partitions(1).optimization(Effort::O0);
        let compiled = self.plugin.compile(&self.topology, &function.stablehlo().unwrap(), &options);
        compiled.map_err(|error| println!("TPU: {error}")).is_ok()
    }
}

/// Whether values and gradients of each item compile.
fn compiled(compiler: &dyn Compiler, items: &[Item<'_>]) -> Vec<(bool, bool)> {
    match items {
        [] => vec![],
        _ if compiler.takes(&program(items)) => items.iter().map(|item| item.parts).collect(),
        [item] => {
            println!("   of {} at {:?}", item.row.op, item.types);
            let part = |parts| compiler.takes(&program(&[item.with(parts)]));
            vec![(item.parts.0 && part((true, false)), item.parts.1 && part((false, true)))]
        }
        many => {
            let (first, second) = many.split_at(many.len() / 2);
            [compiled(compiler, first), compiled(compiler, second)].concat()
        }
    }
}

/// `∇` for value and gradient, `✓` for the value, `–` for nothing.
fn mark((value, gradient): (bool, bool)) -> &'static str {
    match (value, gradient) {
        (true, true) => "∇",
        (true, false) => "✓",
        (false, _) => "–",
    }
}

/// The marks of a dtype: none where recording refuses it, one where both compilers agree.
type Marks = Option<(&'static str, &'static str)>;

/// The marks of every template at one dtype.
fn at(dtype: DType, templates: &[Template<'_>], compilers: [&dyn Compiler; 2]) -> Vec<Marks> {
    let all: Vec<Item<'_>> = templates.iter().map(|template| template.at(dtype)).collect();
    let recorded: Vec<(bool, bool)> = all.iter().map(Item::recorded).collect();
    let kept = all.iter().zip(&recorded).filter(|(_, parts)| parts.0);
    let kept: Vec<Item<'_>> = kept.map(|(item, &parts)| item.with(parts)).collect();
    let [cpu, tpu] = compilers.map(|compiler| compiled(compiler, &kept));
    let mut found = cpu.into_iter().zip(tpu).map(|(cpu, tpu)| (mark(cpu), mark(tpu)));
    recorded.iter().map(|parts| if parts.0 { found.next() } else { None }).collect()
}

/// A cell for several dtypes, which are named where they differ.
fn cell(marks: &[(DType, Marks)]) -> String {
    let spell = |marks: Marks| match marks {
        None => String::new(),
        Some((cpu, tpu)) if cpu == tpu => cpu.to_owned(),
        Some((cpu, tpu)) => format!("{cpu}/{tpu}"),
    };
    if marks.iter().all(|m| m.1 == marks[0].1) {
        return spell(marks[0].1);
    }
    let mut found: Vec<(String, Vec<&str>)> = vec![];
    for (dtype, marks) in marks.iter().filter(|m| m.1.is_some()) {
        let mark = spell(*marks);
        match found.iter_mut().find(|f| f.0 == mark) {
            Some(known) => known.1.push(dtype.name()),
            None => found.push((mark, vec![dtype.name()])),
        }
    }
    let spelled: Vec<String> = found.iter().map(|(mark, dtypes)| format!("{mark} {}", dtypes.join(" "))).collect();
    spelled.join(", ")
}

fn templates(families: &[Family]) -> Vec<Template<'_>> {
    let (mut found, mut named) = (vec![], BTreeSet::new());
    for family in families {
        let cases = family.cases();
        for row in family.rows.iter().filter(|row| !row.methods.is_empty()) {
            let mut fitting = cases.iter().filter(|case| case.op == row.op);
            let has_elements = |case: &&Case| case.types().all(|ty| ty.shape.num_elements() > 0);
            let case = fitting.clone().find(has_elements).or_else(|| fitting.next()).unwrap();
            // Rows of the same function would be the same line.
            if named.insert(row.methods) {
                found.push(Template { row, case: case.clone() });
            }
        }
    }
    found
}

/// The table as the code has it.
fn table(compilers: [&dyn Compiler; 2]) -> String {
    let families = families();
    let (templates, columns) = (templates(&families), columns());
    let heads: String = columns.iter().map(|(name, _)| format!(" {name} |")).collect();
    let mut text = format!("| operation |{heads}\n| --- |{}\n", " --- |".repeat(columns.len()));
    let found: Vec<Vec<Vec<Marks>>> = columns
        .iter()
        .map(|(_, dtypes)| dtypes.iter().map(|&dtype| at(dtype, &templates, compilers)).collect())
        .collect();
    for (i, template) in templates.iter().enumerate() {
        let names: Vec<String> = template.row.methods.iter().map(|name| format!("`{name}`")).collect();
        text += &format!("| {} |", names.join(" "));
        for ((_, dtypes), found) in columns.iter().zip(&found) {
            let marks: Vec<(DType, Marks)> = dtypes.iter().zip(found).map(|(&d, found)| (d, found[i])).collect();
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
    let expected = table([&Runtime::global().unwrap(), &tpu]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/operations.md");
    let chapter = fs::read_to_string(&path).unwrap();
    let start = chapter.find("| operation |").unwrap_or_else(|| panic!("the chapter has no table"));
    let end = start + chapter[start..].find("|\n\n").map_or(chapter.len() - start, |end| end + 2);
    if chapter[start..end] == expected {
        return;
    }
    let update = std::env::var("UPDATE_EXPECT").as_deref() == Ok("1");
    let lines: BTreeSet<&str> = chapter[start..end].lines().collect();
    let new: Vec<&str> = expected.lines().filter(|line| !lines.contains(line)).collect();
    assert!(update, "the table is not the code's; UPDATE_EXPECT=1 writes it anew. New lines:\n{}", new.join("\n"));
    fs::write(&path, [&chapter[..start], &expected, &chapter[end..]].concat()).unwrap();
}
