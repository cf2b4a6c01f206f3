//! Random sequences of operations on small tensors of all dtypes, their gradients, and the text:
//! none may panic, and what is recorded must compile. One input in `FULMEN_FUZZ_COMPILE` (64 unless
//! set, 0 for none) is compiled by the CPU plugin.

#![no_main]

use std::cell::RefCell;

use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Client, CompileOptions, Effort, Plugin};
use fulmen_tensor::{DType, Function, Tensor, grad};
use libfuzzer_sys::{Corpus, fuzz_target};

#[path = "../../crates/tensor/tests/it/shape_rules/call_table.rs"]
mod call_table;
#[path = "../../crates/tensor/tests/it/shape_rules/choices.rs"]
mod choices;

use call_table::CALLS;
use choices::Choices;

/// Larger tensors are not compiled: the compiler computes constants while it compiles.
const LARGE: usize = 1 << 14;

struct Compiler {
    client: Client,
    /// One of this number of inputs is compiled.
    one_in: usize,
    seen: usize,
    compiled: usize,
}

thread_local! {
    static COMPILER: RefCell<Compiler> = RefCell::new({
        let plugin = Plugin::load(locate(Platform::Cpu, None).expect("the CPU plugin")).expect("the CPU plugin");
        let one_in = std::env::var("FULMEN_FUZZ_COMPILE").ok().and_then(|n| n.parse().ok()).unwrap_or(64);
        Compiler { client: plugin.create_client(&[]).expect("a client"), one_in, seen: 0, compiled: 0 }
    });
}

impl Compiler {
    fn compile(&mut self, function: &Function, text: &str) {
        self.seen += 1;
        let recorded = function.recorded().expect("what has a text has a list");
        let small = recorded.iter().flat_map(|r| &r.types).all(|ty| ty.shape.num_elements() < LARGE);
        if self.one_in == 0 || self.seen % self.one_in != 0 || !small {
            return;
        }
        let options = CompileOptions::new().partitions(1).optimization(Effort::O0);
        if let Err(error) = self.client.compile(text, &options) {
            panic!("the compiler refuses what was recorded: {error}\n{text}");
        }
        self.compiled += 1;
        if self.compiled % 1000 == 0 {
            eprintln!("{} programs compiled of {}", self.compiled, self.seen);
        }
    }
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let mut choices = Choices(bytes);
    let parameters: Vec<Tensor> = choices.types().into_iter().map(|ty| Tensor::placeholder("x", ty)).collect();
    let calls: Vec<_> = CALLS.iter().copied().flatten().collect();
    let mut values = parameters.clone();
    while !choices.is_empty() && values.len() < 24 {
        let (_, call) = calls[choices.below(calls.len())];
        // The latest values first, so that sequences are long.
        values.reverse();
        let results = call(&mut choices, &values);
        values.reverse();
        values.extend(results.into_iter().filter(|y| y.fault().is_none()).take(4));
    }
    let mut results = values.split_off(parameters.len());
    if results.is_empty() {
        return Corpus::Reject;
    }
    // A fault there is as good as a gradient: there are operations without.
    let floats = results.iter().filter(|y| y.dtype().is_float()).map(|y| y.to_dtype(DType::F32).sum_all());
    if let Some(loss) = floats.reduce(|a, b| a + b) {
        let wrt: Vec<&Tensor> = parameters.iter().filter(|x| x.dtype().is_float()).collect();
        results.extend(grad(&loss, &wrt).into_iter().filter(|g| g.fault().is_none()));
    }
    let function = Function::new("fuzz", parameters, results);
    let text = function.stablehlo().expect("what is recorded has a text");
    COMPILER.with_borrow_mut(|compiler| compiler.compile(&function, &text));
    Corpus::Keep
});
