//! Invalid calls of branches and loops.

use expect_test::expect;
use fulmen_tensor::{DType, Scan, Tensor, cond, fori_loop, map, switch, while_loop};

use crate::faults::{check_all, integers, zeros};

#[test]
fn branches() {
    let x = zeros([2]);
    let yes = Tensor::zeros(DType::Bool, []);
    let same = |v: Vec<Tensor>| v;
    let itself: &dyn Fn(Tensor) -> Tensor = &|x| x;
    check_all(
        [
            cond(&x, &[&x], same, same).remove(0),
            cond(&integers([]), &[&x], same, same).remove(0),
            cond(&yes, &[&x], same, |v| vec![v[0].sum_all()]).remove(0),
            cond(&yes, &[&x], same, |v| vec![v[0].clone(), v[0].clone()]).remove(0),
            switch(&x, &[&x], same, &[&same]).remove(0),
            switch(&integers([]), &x, |x| x, &[itself; 128]),
        ],
        expect![[r#"
            cond: the predicate must be a bool scalar, not f32[2]; make one with lt() or all()
            cond: the predicate must be a bool scalar, not i32[]; make one with lt() or all()
            cond: result 0 is f32[2] in branch 0 and f32[] in branch 1; all branches must return the same types
            cond: branch 0 returns 1 result and branch 1 returns 2; all branches must return the same number of results, of the same types
            switch: the index must be an integer scalar, not f32[2]
            switch: there are 129 branches, but at most 128 are supported
        "#]],
    );
}

#[test]
fn loops() {
    let x = zeros([2]);
    let same = |v: Vec<Tensor>| v;
    check_all(
        [
            while_loop(&[&x], |v| v[0].clone(), same).remove(0),
            while_loop(&[&x], |v| v[0].lt(1.0), same).remove(0),
            while_loop(&[&x], |v| v[0].sum_all().lt(1.0), |v| vec![v[0].sum_all()]).remove(0),
            fori_loop(0, 3, &[&x], |_, v| vec![v[0].to_dtype(DType::I32)]).remove(0),
            Scan::new().run(&[&x], &[] as &[Tensor], |v, _| (v, ())).0.remove(0),
            Scan::new().run(&[&x], &[&zeros([])], |v, _| (v, ())).0.remove(0),
            Scan::new().run(&[&x], &[&zeros([2]), &zeros([3])], |v, _| (v, ())).0.remove(0),
            Scan::new().run(&[&x], &[&x], |v, x| (vec![v[0].sum_all()], x)).0.remove(0),
            map(|x| vec![x[0].clone() + zeros([3])], &[&zeros([4, 2])]).remove(0),
        ],
        expect![[r#"
            while_loop: the condition must be a bool scalar, not f32[2]; reduce it with all() or any()
            while_loop: the condition must be a bool scalar, not bool[2]; reduce it with all() or any()
            while_loop: carry 0 enters the body as f32[2] and leaves it as f32[]; its type must stay the same
            scan: carry 0 enters the body as f32[2] and leaves it as i32[2]; its type must stay the same
            scan: there are no xs; set the number of steps with Scan::new().length(n)
            scan: x 0 is a scalar, f32[]; a scan iterates over the first axis of each x
            scan: x 1, f32[3], has 3 slices along its first axis, and x 0 has 2; the numbers must be equal
            scan: carry 0 enters the body as f32[2] and leaves it as f32[]; its type must stay the same
            add: [2] and [3] do not broadcast: counted from the last, axis -1 has 2 and 3, and neither is 1
        "#]],
    );
}
