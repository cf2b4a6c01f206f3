//! The language: planted mistakes, and the text of a small kernel.

use fulmen_kernels::{Index, Kernel, Memory, Tiles};
use fulmen_tensor::{DType, Tensor, TensorType};

fn matrix(rows: usize) -> TensorType {
    TensorType::new(DType::F32, [rows, 128])
}

fn rows(k: &Tiles) -> [Index; 2] {
    [k.program(0), Index::from(0)]
}

/// The message of a kernel with a mistake. Its grid has 4 steps, `x` and `y` have 32 rows.
fn mistake(record: impl FnOnce(&Tiles)) -> String {
    Kernel::record("k", &[4], record).unwrap_err().to_string()
}

fn both(k: &Tiles, map: [Index; 2]) -> [Memory; 2] {
    let x = k.input(&matrix(32), &[8, 128], rows(k));
    [x, k.output(&matrix(32), &[8, 128], map)]
}

#[test]
fn a_wrong_index_map_is_refused() {
    let copy = |map: &dyn Fn(&Tiles) -> [Index; 2]| {
        mistake(|k| {
            let [x, y] = both(k, map(k));
            y.store(&x.load());
        })
    };
    let outside = copy(&|k| [k.program(0) + 1, Index::from(0)]);
    assert!(
        outside.contains("gives 4 at [3] of the grid; the array has 4 blocks there"),
        "{outside}"
    );
    let again = copy(&|k| [k.program(0) % 2, Index::from(0)]);
    assert!(
        again.contains("the block [0, 0] of an output is left and visited again at [2]"),
        "{again}"
    );
    let missing = copy(&|k| [k.program(0) / 2, Index::from(0)]);
    assert!(missing.contains("only 2 of the 4 blocks of an output f32[32, 128]"), "{missing}");
    let table = copy(&|k| [k.table(&[0, 1, 2]).at(k.program(0)), Index::from(0)]);
    assert!(table.contains("gives no number at [3]"), "{table}");
    let axis = mistake(|k| {
        k.program(1);
    });
    assert!(axis.contains("the grid has 1 axes, but program(1)"), "{axis}");
}

#[test]
fn a_grid_whose_steps_are_alike_is_checked_by_one_of_them() {
    // 900 million steps.
    let ty = TensorType::new(DType::F32, [30_000, 30_000]);
    let copy = Kernel::record("copy", &[30_000, 30_000], |k| {
        let at = || [k.program(0), k.program(1)];
        let x = k.input(&ty, &[1, 1], at());
        k.output(&ty, &[1, 1], at()).store(&x.load());
    });
    assert!(copy.is_ok());
    let of_rows = |count: usize| {
        mistake(|k| {
            let y = k.output(&matrix(count), &[8, 128], rows(k));
            y.store(&k.full(DType::F32, [8, 128], 0.0));
        })
    };
    let outside = of_rows(24);
    assert!(
        outside.contains("gives 3 at [3] of the grid; the array has 3 blocks there"),
        "{outside}"
    );
    let missing = of_rows(40);
    assert!(missing.contains("only 4 of the 5 blocks of an output f32[40, 128]"), "{missing}");
}

#[test]
fn an_accumulator_that_is_not_set_gives_nan() -> fulmen_tensor::Result<()> {
    let sum = |is_set: bool| {
        Kernel::record("sum", &[4], |k| {
            let x = k.input(&matrix(32), &[8, 128], rows(k));
            let y = k.output(&matrix(1), &[1, 128], [Index::from(0), Index::from(0)]);
            let total = k.scratch(DType::F32, [1, 128]);
            if is_set {
                k.when(k.program(0).equals(0), || total.store(&k.full(DType::F32, [1, 128], 0.0)));
            }
            total.store(&(total.load() + x.load().sum(0)));
            k.when(k.program(0).equals(3), || y.store(&total.load()));
        })
    };
    let x = Tensor::ones(DType::F32, [32, 128]);
    let total = |kernel: &Kernel| kernel.call(&[&x])[0].eval()?.to_vec::<f32>();
    assert_eq!(total(&sum(true)?)?, [32.0; 128]);
    assert!(total(&sum(false)?)?.iter().all(|x| x.is_nan()));
    Ok(())
}

#[test]
fn tiles_that_do_not_fit_are_refused() {
    let wrong = |record: &dyn Fn(&Tiles, &Memory, &Memory)| {
        mistake(|k| {
            let [x, y] = both(k, rows(k));
            record(k, &x, &y);
        })
    };
    let stored = wrong(&|_, x, y| y.store(&x.load().sum(0)));
    assert!(stored.contains("f32[1, 128] cannot be stored as f32[8, 128]"), "{stored}");
    assert!(stored.contains("language.rs"), "{stored}");
    let input = wrong(&|_, x, _| x.store(&x.load()));
    assert!(input.contains("an input cannot be stored to"), "{input}");
    let dtypes = wrong(&|k, x, y| y.store(&(x.load() + k.full(DType::Bf16, [8, 128], 1.0))));
    assert!(dtypes.contains("the dtypes of f32[8, 128] and bf16[8, 128] differ"), "{dtypes}");
    let mask = wrong(&|k, x, y| y.store(&k.iota([8, 128], 0, 0).select(&x.load(), &x.load())));
    assert!(mask.contains("i32[8, 128] is not a mask for f32[8, 128]"), "{mask}");
    let product = wrong(&|_, x, y| y.store(&x.load().dot(&x.load(), [1, 0], DType::F32)));
    assert!(product.contains("no product of f32[8, 128] and f32[8, 128]"), "{product}");
    let outside = wrong(&|k, x, y| {
        let mut inner = None;
        k.when(k.program(0).equals(0), || inner = Some(x.load()));
        y.store(&inner.unwrap());
    });
    assert!(
        outside.contains("a value is used outside of the when() that computes it"),
        "{outside}"
    );
    let block = mistake(|k| {
        k.output(&matrix(32), &[5, 128], rows(k));
    });
    assert!(block.contains("a block [5, 128] with 2 indices does not fit f32[32, 128]"), "{block}");
}

#[test]
fn a_call_with_wrong_inputs_is_poisoned() {
    let copy = Kernel::record("copy", &[4], |k| {
        let [x, y] = both(k, rows(k));
        y.store(&x.load());
    });
    let message =
        |inputs: &[Tensor]| copy.as_ref().unwrap().call(inputs)[0].fault().unwrap().to_string();
    let x = Tensor::ones(DType::F32, [16, 128]);
    let wrong = message(std::slice::from_ref(&x));
    assert!(wrong.contains("copy: input 0 is f32[16, 128]; it must be f32[32, 128]"), "{wrong}");
    let count = message(&[]);
    assert!(count.contains("the kernel has 1 input, and got 0"), "{count}");
}

#[test]
fn a_mask_with_a_mistake_gives_other_numbers() -> fulmen_tensor::Result<()> {
    let lower = |shift: i32| {
        Kernel::record("tril", &[1], |k| {
            let whole = || [Index::from(0), Index::from(0)];
            let ty = TensorType::new(DType::F32, [16, 16]);
            let x = k.input(&ty, &[16, 16], whole());
            let y = k.output(&ty, &[16, 16], whole());
            let mask = k.iota([16, 16], 1, 0).le(&k.iota([16, 16], 0, shift));
            y.store(&mask.select(&x.load(), &k.full(DType::F32, [16, 16], 0.0)));
        })
    };
    let x = Tensor::ones(DType::F32, [16, 16]);
    let exact = x.tril(0).eval()?.to_vec::<f32>()?;
    assert_eq!(lower(0)?.call(&[&x])[0].eval()?.to_vec::<f32>()?, exact);
    assert_ne!(lower(1)?.call(&[&x])[0].eval()?.to_vec::<f32>()?, exact);
    Ok(())
}

#[test]
fn a_result_may_be_the_same_for_all_inputs() -> fulmen_tensor::Result<()> {
    let ones = Kernel::record("ones", &[4], |k| {
        let [_, y] = both(k, rows(k));
        y.store(&k.full(DType::F32, [8, 128], 1.0));
    })?;
    let x = Tensor::zeros(DType::F32, [32, 128]);
    assert_eq!(ones.call(&[&x])[0].eval()?.to_vec::<f32>()?, [1.0; 32 * 128]);
    // Without inputs, and with a second result that depends on the position in the grid.
    let filled = Kernel::record("filled", &[4], |k| {
        k.output(&matrix(32), &[8, 128], rows(k)).store(&k.full(DType::F32, [8, 128], 2.0));
        let ty = TensorType::new(DType::I32, [32, 128]);
        let numbers = k.output(&ty, &[8, 128], rows(k));
        numbers.store(&k.iota([8, 128], 0, k.program(0) * 8));
    })?;
    let results = filled.call(&[] as &[Tensor]);
    assert_eq!(results[0].eval()?.to_vec::<f32>()?, [2.0; 32 * 128]);
    let numbers: Vec<i32> = (0..32 * 128).map(|i| i / 128).collect();
    assert_eq!(results[1].eval()?.to_vec::<i32>()?, numbers);
    Ok(())
}
