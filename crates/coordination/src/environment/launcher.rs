//! The launchers that start the processes of a run and number them: torchrun, Open MPI's mpirun and
//! SLURM's srun.
//!
//! One launcher can start another: mpirun and torchrun run within a job of SLURM, and their
//! processes then have the variables of both. The inner launcher counts, so SLURM comes last.

use super::{Environment, invalid};
use crate::{Process, Result, error};

/// The first of the ports for runs that a launcher started: the last 4,096 of all. Jobs that share
/// a host get different ports. JAX chooses among the same ports.
const FIRST_PORT: u32 = 61_440;
const PORTS: u32 = 4_096;

const EXPECTED_INDEX: &str = "the index of this process, from 0";
const EXPECTED_COUNT: &str = "the number of processes, at least 1";

/// What a launcher says about a process.
struct Launched {
    index: usize,
    count: usize,
    /// The index among the processes of this host, and their number; `(0, 1)` if unknown.
    local: (usize, usize),
    /// Where process 0 listens, if the launcher says on which host it runs.
    coordinator: Option<String>,
    run_id: String,
}

impl Environment<'_> {
    /// The process that a launcher started; `None` without one. `FULMEN_COORDINATOR` says where
    /// process 0 listens if the launcher does not know, or is wrong.
    pub(super) fn launched_process(&self) -> Result<Option<Process>> {
        let launched = match self.torchrun()? {
            Some(launched) => Some(launched),
            None => match self.open_mpi()? {
                Some(launched) => Some(launched),
                None => self.slurm()?,
            },
        };
        let Some(launched) = launched else { return Ok(None) };
        if launched.count == 1 {
            return Ok(None);
        }
        let coordinator = match (self.text(super::COORDINATOR)?, launched.coordinator) {
            (Some(own), _) | (None, Some(own)) => own,
            (None, None) => {
                let name = super::COORDINATOR;
                return Err(error::usage(format!(
                    "Open MPI started {} processes on several hosts, and does not say on which host process 0 runs; set \
                     {name} to its host:port for all of them (`mpirun -x {name}=host-a:8482 …`)",
                    launched.count
                )));
            }
        };
        let process = Process::new(launched.index, launched.count, coordinator)?;
        Ok(Some(process.with_run_id(launched.run_id).with_local(launched.local)))
    }

    /// The variables of torchrun, which PyTorch's operator for Kubernetes sets too.
    fn torchrun(&self) -> Result<Option<Launched>> {
        let Some(index) = self.number("RANK", EXPECTED_INDEX)? else { return Ok(None) };
        let Some(count) = self.number("WORLD_SIZE", EXPECTED_COUNT)? else { return Ok(None) };
        check_index("RANK", index, "WORLD_SIZE", count)?;
        let related = "WORLD_SIZE";
        let host = self.required("MASTER_ADDR", related, "the host of process 0")?;
        let expected_port = "a port of process 0's host";
        let port = self.required("MASTER_PORT", related, expected_port)?;
        let port: u16 = port.parse().map_err(|_| invalid("MASTER_PORT", &port, expected_port))?;
        // torchrun's agent itself listens on that port.
        let is_taken = self
            .text("TORCHELASTIC_USE_AGENT_STORE")?
            .is_some_and(|flag| flag.eq_ignore_ascii_case("true"));
        let port = if is_taken { port_for(u32::from(port)) } else { port };
        let restarts = self.text("TORCHELASTIC_RESTART_COUNT")?.unwrap_or_default();
        let run_id = match self.text("TORCHELASTIC_RUN_ID")? {
            Some(id) => format!("torchrun {id} {restarts}").trim_end().to_owned(),
            None => String::new(),
        };
        let local = self.local("LOCAL_RANK", "LOCAL_WORLD_SIZE")?;
        let coordinator = Some(address(&host, port));
        Ok(Some(Launched { index, count, local, coordinator, run_id }))
    }

    /// The index of this process on its host and the number of processes there, from two variables.
    fn local(&self, index_name: &str, count_name: &str) -> Result<(usize, usize)> {
        let index = self.number(index_name, EXPECTED_INDEX)?;
        let (Some(index), Some(count)) = (index, self.number(count_name, EXPECTED_COUNT)?) else {
            return Ok((0, 1));
        };
        check_index(index_name, index, count_name, count)?;
        Ok((index, count))
    }

    /// The variables of Open MPI. Version 4 names the host of mpirun, where process 0 usually runs.
    fn open_mpi(&self) -> Result<Option<Launched>> {
        const RANK: &str = "OMPI_COMM_WORLD_RANK";
        const SIZE: &str = "OMPI_COMM_WORLD_SIZE";
        const LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
        const HEAD_NODE: &str = "OMPI_MCA_orte_hnp_uri";
        let Some(index) = self.number(RANK, EXPECTED_INDEX)? else { return Ok(None) };
        let count = self.required(SIZE, RANK, EXPECTED_COUNT)?;
        let count = count.parse().map_err(|_| invalid(SIZE, &count, EXPECTED_COUNT))?;
        check_index(RANK, index, SIZE, count)?;
        let local = self.local("OMPI_COMM_WORLD_LOCAL_RANK", LOCAL_SIZE)?;
        let on_this_host = self.number(LOCAL_SIZE, EXPECTED_COUNT)?;
        let job = match self.text("OMPI_MCA_ess_base_jobid")? {
            Some(job) => job,
            None => self.text("PMIX_NAMESPACE")?.unwrap_or_default(),
        };
        let port = port_for(number_of(&job));
        let coordinator = if on_this_host == Some(count) {
            Some(address("127.0.0.1", port))
        } else if let Some(uri) = self.text(HEAD_NODE)? {
            let expected = "`JOB;tcp://ADDRESS,…:PORT`";
            let host = first_address(&uri).ok_or_else(|| invalid(HEAD_NODE, &uri, expected))?;
            Some(address(host, port))
        } else {
            None
        };
        let run_id = format!("mpirun {job}").trim_end().to_owned();
        Ok(Some(Launched { index, count, local, coordinator, run_id }))
    }

    /// The variables of a step of SLURM. A script of sbatch that starts a program without srun has
    /// none of them: SLURM started it once.
    fn slurm(&self) -> Result<Option<Launched>> {
        const COUNT: &str = "SLURM_STEP_NUM_TASKS";
        const INDEX: &str = "SLURM_PROCID";
        const HOSTS: &str = "SLURM_STEP_NODELIST";
        let Some(count) = self.number(COUNT, EXPECTED_COUNT)? else { return Ok(None) };
        if count == 1 {
            return Ok(None);
        }
        let index = self.required(INDEX, COUNT, EXPECTED_INDEX)?;
        let index = index.parse().map_err(|_| invalid(INDEX, &index, EXPECTED_INDEX))?;
        check_index(INDEX, index, COUNT, count)?;
        let expected_hosts = "the hosts of the step, such as `node[1-4]`";
        let hosts = self.required(HOSTS, COUNT, expected_hosts)?;
        let first = first_host(&hosts).ok_or_else(|| invalid(HOSTS, &hosts, expected_hosts))?;
        let job = self.required("SLURM_JOB_ID", COUNT, "the number of the job")?;
        let step = self.text("SLURM_STEP_ID")?.unwrap_or_default();
        let restarts = self.text("SLURM_RESTART_COUNT")?.unwrap_or_default();
        let port = port_for(number_of(&job).wrapping_add(number_of(&step)));
        let run_id = format!("srun {job}.{step} {restarts}").trim_end().to_owned();
        let local = self.slurm_local()?;
        let coordinator = Some(address(&first, port));
        Ok(Some(Launched { index, count, local, coordinator, run_id }))
    }

    /// The index of a task of SLURM on its node, and the number of tasks there.
    fn slurm_local(&self) -> Result<(usize, usize)> {
        const TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";
        let node = self.number("SLURM_NODEID", "the index of the node, from 0")?;
        let index = self.number("SLURM_LOCALID", EXPECTED_INDEX)?;
        let (Some(node), Some(index), Some(tasks)) = (node, index, self.text(TASKS)?) else {
            return Ok((0, 1));
        };
        let expected = "the tasks of each node, such as `2(x3),1`";
        let count = tasks_of(&tasks, node).ok_or_else(|| invalid(TASKS, &tasks, expected))?;
        check_index("SLURM_LOCALID", index, TASKS, count)?;
        Ok((index, count))
    }

    /// The value of a variable that `related` ones need.
    fn required(&self, name: &str, related: &str, expected: &str) -> Result<String> {
        self.text(name)?.ok_or_else(|| {
            error::usage(format!(
                "the environment variable {name} is not set though {related} is; expected {expected} (or set \
                 {}=1 for a process of its own)",
                super::NUM_PROCESSES
            ))
        })
    }
}

fn check_index(index_name: &str, index: usize, count_name: &str, count: usize) -> Result<()> {
    if count == 0 {
        return Err(invalid(count_name, "0", EXPECTED_COUNT));
    }
    if index >= count {
        let expected = format!("0 to {}, as {count_name} is {count}", count - 1);
        return Err(invalid(index_name, &index.to_string(), &expected));
    }
    Ok(())
}

/// A port for the run with a number.
fn port_for(number: u32) -> u16 {
    u16::try_from(FIRST_PORT + number % PORTS).unwrap_or(super::DEFAULT_PORT)
}

/// A number for a job's name: the number that it is, or a sum over its bytes.
fn number_of(name: &str) -> u32 {
    name.parse().unwrap_or_else(|_| {
        name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
    })
}

/// `host:port`. An IPv6 address needs brackets before a port.
pub(super) fn address(host: &str, port: u16) -> String {
    let needs_brackets = host.contains(':') && !host.starts_with('[');
    if needs_brackets { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The host of an address with or without a port.
pub(super) fn host(address: &str) -> &str {
    if let Some(ipv6) = address.strip_prefix('[') {
        return ipv6.split_once(']').map_or(ipv6, |(host, _)| host);
    }
    match address.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => address,
    }
}

/// The first address of `JOB;tcp://ADDRESS,ADDRESS:PORT`.
fn first_address(uri: &str) -> Option<&str> {
    let (_, addresses) = uri.split_once("://")?;
    addresses.split([',', ':']).next().filter(|address| !address.is_empty())
}

/// The number of tasks of a node in SLURM's notation, such as `2(x3),1`.
fn tasks_of(list: &str, node: usize) -> Option<usize> {
    let mut before = 0_usize;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before = before.checked_add(nodes)?;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

/// The first host of a list in SLURM's notation, such as `a[1-3,7]x[01-02],b`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            return Some(host).filter(|host| !host.is_empty());
        }
        let (numbers, after) = rest[at + 1..].split_once(']')?;
        let first = numbers.split(['-', ',']).next().filter(|number| !number.is_empty())?;
        host.push_str(first);
        rest = after;
    }
    host.push_str(rest);
    Some(host).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process of these variables, or the error.
    fn shown(variables: &[(&str, &str)]) -> String {
        let env = |name: &str| variables.iter().rev().find(|v| v.0 == name).map(|v| v.1.into());
        match Process::from_fulmen_env(env) {
            Ok(process) => format!("{process} at {} {}", process.coordinator(), process.run_id()),
            Err(error) => {
                assert!(error.is_usage());
                error.to_string()
            }
        }
    }

    fn with<'a>(
        variables: &[(&'a str, &'a str)],
        more: &[(&'a str, &'a str)],
    ) -> Vec<(&'a str, &'a str)> {
        [variables, more].concat()
    }

    /// Variables of a step on two nodes, as SLURM 22.05 sets them.
    const SLURM: [(&str, &str); 8] = [
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "2"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_PROCID", "3"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_JOB_NODELIST", "node[01-09]"),
        ("SLURM_STEP_NODELIST", "node[07-08]"),
    ];

    const OPEN_MPI: [(&str, &str); 5] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("OMPI_MCA_ess_base_jobid", "2147614721"),
        ("OMPI_MCA_orte_hnp_uri", "2147614720.0;tcp://10.0.0.5,172.17.0.1:40123"),
    ];

    const TORCHRUN: [(&str, &str); 4] =
        [("RANK", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "host-a"), ("MASTER_PORT", "29500")];

    #[test]
    fn a_step_of_slurm_names_its_processes() {
        assert_eq!(shown(&SLURM), "process 3 of 4 at node07:62057 srun 4711.2");
        assert_eq!(
            shown(&with(&SLURM, &[("SLURM_RESTART_COUNT", "1")])),
            "process 3 of 4 at node07:62057 srun 4711.2 1"
        );
        // One task, and a batch script without srun.
        let alone = with(&SLURM, &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")]);
        assert_eq!(shown(&alone), "process 0 of 1 at 127.0.0.1:0 ");
        let script = [("SLURM_JOB_ID", "4711"), ("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")];
        assert_eq!(shown(&script), "process 0 of 1 at 127.0.0.1:0 ");
    }

    #[test]
    fn lists_of_hosts_in_slurms_notation_have_a_first_one() {
        for (list, first) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("node[3,5-9]", "node3"),
            ("node[007-123].cluster,other", "node007.cluster"),
            ("rack[2-3]n[01-16]", "rack2n01"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for damaged in ["", ",a", "node[", "node[]", "node[1-2", "[,2]"] {
            assert_eq!(first_host(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn launchers_count_the_processes_of_a_host() {
        let local = |variables: &[(&str, &str)]| {
            let env = |name: &str| variables.iter().rev().find(|v| v.0 == name).map(|v| v.1.into());
            Process::from_fulmen_env(env).map(|process| process.local()).map_err(|e| e.to_string())
        };
        assert_eq!(local(&SLURM), Ok((0, 1)), "without the tasks of each node");
        let slurm = with(&SLURM, &[("SLURM_NODEID", "1"), ("SLURM_STEP_TASKS_PER_NODE", "2(x2)")]);
        assert_eq!(local(&slurm), Ok((1, 2)));
        let open_mpi = with(&OPEN_MPI, &[("OMPI_COMM_WORLD_LOCAL_RANK", "1")]);
        assert_eq!(local(&open_mpi), Ok((1, 2)));
        let torchrun = with(&TORCHRUN, &[("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "4")]);
        assert_eq!(local(&torchrun), Ok((2, 4)));
        let wrong = local(&with(&torchrun, &[("LOCAL_RANK", "4")])).unwrap_err();
        assert!(wrong.contains("LOCAL_RANK is `4`; expected 0 to 3"), "{wrong}");
        for (list, node, tasks) in [
            ("2", 0, Some(2)),
            ("2(x3),1", 2, Some(2)),
            ("2(x3),1", 3, Some(1)),
            ("2(x3),1", 4, None),
            ("2(x", 0, None),
            ("", 0, None),
        ] {
            assert_eq!(tasks_of(list, node), tasks, "{list} {node}");
        }
    }

    #[test]
    fn open_mpi_names_its_processes() {
        // 2147614721 is 1 modulo 4,096, and 61,440 is the first port.
        assert_eq!(shown(&OPEN_MPI), "process 1 of 4 at 10.0.0.5:61441 mpirun 2147614721");
        assert_eq!(
            shown(&with(&OPEN_MPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")])),
            "process 1 of 4 at 127.0.0.1:61441 mpirun 2147614721"
        );
        // Version 5 does not name the host of mpirun.
        let version_5 =
            [OPEN_MPI[0], OPEN_MPI[1], OPEN_MPI[2], ("PMIX_NAMESPACE", "prterun-a-7@1")];
        assert_eq!(
            shown(&version_5),
            "Open MPI started 4 processes on several hosts, and does not say on which host process 0 runs; set \
             FULMEN_COORDINATOR to its host:port for all of them (`mpirun -x FULMEN_COORDINATOR=host-a:8482 …`)"
        );
        assert_eq!(
            shown(&with(&version_5, &[("FULMEN_COORDINATOR", "host-a:8482")])),
            "process 1 of 4 at host-a:8482 mpirun prterun-a-7@1"
        );
    }

    #[test]
    fn torchrun_names_its_processes() {
        assert_eq!(shown(&TORCHRUN), "process 2 of 4 at host-a:29500 ");
        let agent = [
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
        ];
        assert_eq!(
            shown(&with(&TORCHRUN, &agent)),
            "process 2 of 4 at host-a:62268 torchrun none 1"
        );
        let without_port = &TORCHRUN[..3];
        assert_eq!(
            shown(without_port),
            "the environment variable MASTER_PORT is not set though WORLD_SIZE is; expected a port of process 0's \
             host (or set FULMEN_NUM_PROCESSES=1 for a process of its own)"
        );
    }

    #[test]
    fn the_inner_launcher_counts_and_fulmens_own_variables_come_first() {
        let nested = [&SLURM[..], &OPEN_MPI[..]].concat();
        assert_eq!(shown(&nested), "process 1 of 4 at 10.0.0.5:61441 mpirun 2147614721");
        let nested = [&nested[..], &TORCHRUN[..]].concat();
        assert_eq!(shown(&nested), "process 2 of 4 at host-a:29500 ");
        let elsewhere = with(&nested, &[("FULMEN_COORDINATOR", "host-b:9")]);
        assert_eq!(shown(&elsewhere), "process 2 of 4 at host-b:9 ");
        let alone = with(&nested, &[("FULMEN_NUM_PROCESSES", "1")]);
        assert_eq!(shown(&alone), "process 0 of 1 at 127.0.0.1:0 ");
        let own = [
            ("FULMEN_COORDINATOR", "host-c:99"),
            ("FULMEN_PROCESS_ID", "0"),
            ("FULMEN_NUM_PROCESSES", "2"),
            ("FULMEN_RUN_ID", "mine"),
        ];
        assert_eq!(shown(&with(&nested, &own)), "process 0 of 2 at host-c:99 mine");
        let named = with(&SLURM, &[("FULMEN_RUN_ID", "mine")]);
        assert_eq!(shown(&named), "process 3 of 4 at node07:62057 mine");
    }

    #[test]
    fn wrong_variables_of_launchers_are_named() {
        for (base, change, message) in [
            (
                &SLURM[..],
                ("SLURM_PROCID", "4"),
                "SLURM_PROCID is `4`; expected 0 to 3, as SLURM_STEP_NUM_TASKS is 4",
            ),
            (&SLURM, ("SLURM_STEP_NUM_TASKS", "many"), "SLURM_STEP_NUM_TASKS is `many`"),
            (&SLURM, ("SLURM_STEP_NODELIST", "node["), "SLURM_STEP_NODELIST is `node[`"),
            (
                &SLURM,
                ("SLURM_JOB_ID", ""),
                "SLURM_JOB_ID is not set though SLURM_STEP_NUM_TASKS is",
            ),
            (&OPEN_MPI, ("OMPI_COMM_WORLD_SIZE", "0"), "OMPI_COMM_WORLD_SIZE is `0`"),
            (&OPEN_MPI, ("OMPI_MCA_orte_hnp_uri", "x"), "OMPI_MCA_orte_hnp_uri is `x`"),
            (&TORCHRUN, ("MASTER_PORT", "99999"), "MASTER_PORT is `99999`"),
            (&TORCHRUN, ("RANK", "-1"), "RANK is `-1`"),
        ] {
            let shown = shown(&with(base, &[change]));
            assert!(shown.contains(message), "{shown}");
        }
    }
}
