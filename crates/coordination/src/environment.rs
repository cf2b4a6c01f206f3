//! Finds the place of this process in its run from environment variables: Fulmen's own, or else
//! libtpu's, or else those of the launcher that started it.
//!
//! Out of scope: querying a cloud's metadata server (`network/metadata.rs`).

mod launcher;

use std::ffi::OsString;
use std::fmt;

use crate::{Error, Process, Result, error};

/// The port of process 0 when only its host is known. It follows the ports of libtpu, 8471 to 8478.
pub const DEFAULT_PORT: u16 = 8482;

const COORDINATOR: &str = "FULMEN_COORDINATOR";
const PROCESS_ID: &str = "FULMEN_PROCESS_ID";
const NUM_PROCESSES: &str = "FULMEN_NUM_PROCESSES";
const RUN_ID: &str = "FULMEN_RUN_ID";
const HOSTS: &str = "FULMEN_HOSTS";
const RUN_TOKEN: &str = "FULMEN_RUN_TOKEN";

impl Process {
    /// Describes this process as the environment variables say.
    ///
    /// Fulmen's own variables come first: `FULMEN_COORDINATOR` (`host:port`), `FULMEN_PROCESS_ID`
    /// and `FULMEN_NUM_PROCESSES`. If none of them is set, libtpu's variables are used:
    /// `TPU_WORKER_ID` and `TPU_WORKER_HOSTNAMES` or, with several processes on a host,
    /// `CLOUD_TPU_TASK_ID` and `TPU_PROCESS_ADDRESSES` (or a file with the addresses,
    /// `TPU_PROCESS_ADDRESSES_PATH`). Process 0 then listens on port 8482 of the first host. In a run
    /// over several slices, they describe the slice, `MEGASCALE_NUM_SLICES` and
    /// `MEGASCALE_SLICE_ID` say which slice this is, and `MEGASCALE_COORDINATOR_ADDRESS` is the host
    /// of process 0. Next come the variables of the launcher that started the process: torchrun's
    /// (`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`), Open MPI's
    /// (`OMPI_COMM_WORLD_RANK`), or those of a step of SLURM (`SLURM_PROCID`); with them,
    /// `FULMEN_COORDINATOR` can be set alone. If no variable is set, or only
    /// `FULMEN_NUM_PROCESSES=1`, the result is a single process.
    ///
    /// `FULMEN_RUN_ID` names the run, and `FULMEN_RUN_TOKEN` is its secret
    /// ([`Process::with_run_token`]).
    ///
    /// ```
    /// use fulmen_coordination::Process;
    ///
    /// let env = |name: &str| match name {
    ///     "TPU_WORKER_ID" => Some("1".into()),
    ///     "TPU_WORKER_HOSTNAMES" => Some("host-a,host-b".into()),
    ///     _ => None,
    /// };
    /// let process = Process::from_env(env)?;
    /// assert_eq!((process.index(), process.count(), process.coordinator()), (1, 2, "host-a:8482"));
    /// # Ok::<(), fulmen_coordination::Error>(())
    /// ```
    ///
    /// # Errors
    /// A variable is missing although related ones are set, or its value is invalid. The message
    /// names the variable.
    pub fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Process> {
        let env = Environment(&env);
        let process = match env.fulmen_process()? {
            Some(process) => process,
            None => match env.libtpu_process()? {
                Some(process) => process,
                None => env.launched_process()?.unwrap_or_else(Process::single),
            },
        };
        env.add_run(process)
    }

    /// Like [`Process::from_env`], but ignores libtpu's variables. Use it for a run on other
    /// devices of a TPU host.
    ///
    /// # Errors
    /// As [`Process::from_env`].
    pub fn from_fulmen_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Process> {
        let env = Environment(&env);
        let process = match env.fulmen_process()? {
            Some(process) => process,
            None => env.launched_process()?.unwrap_or_else(Process::single),
        };
        env.add_run(process)
    }
}

struct Environment<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Environment<'_> {
    /// The value of a variable that is set and not empty.
    fn text(&self, name: &str) -> Result<Option<String>> {
        match (self.0)(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) if text.trim().is_empty() => Ok(None),
            Some(Ok(text)) => Ok(Some(text.trim().to_owned())),
            Some(Err(text)) => Err(invalid(name, &text.to_string_lossy(), "text in UTF-8")),
        }
    }

    fn number(&self, name: &str, expected: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| invalid(name, &text, expected))
    }

    /// The name and the secret of the run, and the names of its hosts.
    fn add_run(&self, process: Process) -> Result<Process> {
        let process = match self.text(HOSTS)? {
            Some(hosts) => process.with_hosts(hosts.split(',').map(str::to_owned).collect()),
            None => process,
        };
        let process = match self.text(RUN_ID)? {
            Some(run_id) => process.with_run_id(run_id),
            None => process,
        };
        let token_error = |what: &dyn fmt::Display| {
            error::usage(format!("the environment variable {RUN_TOKEN}: {what}"))
        };
        // Unlike other variables, the token is never shown.
        match (self.0)(RUN_TOKEN).map(OsString::into_string) {
            None => Ok(process),
            Some(Ok(token)) if token.trim().is_empty() => Ok(process),
            Some(Ok(token)) => process.with_run_token(&token).map_err(|e| token_error(&e)),
            Some(Err(_)) => Err(token_error(&"its value is not text in UTF-8")),
        }
    }

    fn fulmen_process(&self) -> Result<Option<Process>> {
        let expected_id = "the index of this process, from 0";
        let expected_count = "the number of processes, at least 1";
        let expected_coordinator = "the host:port at which process 0 listens";
        let coordinator = self.text(COORDINATOR)?;
        let index = self.number(PROCESS_ID, expected_id)?;
        let count = self.number(NUM_PROCESSES, expected_count)?;
        if count == Some(1) && index.is_none() && coordinator.is_none() {
            return Ok(Some(Process::single()));
        }
        if count.is_none()
            && index.is_none()
            && coordinator.is_some()
            && let Some(launched) = self.launched_process()?
        {
            return Ok(Some(launched));
        }
        let set_names: Vec<&str> = [
            coordinator.as_ref().map(|_| COORDINATOR),
            index.map(|_| PROCESS_ID),
            count.map(|_| NUM_PROCESSES),
        ]
        .into_iter()
        .flatten()
        .collect();
        let Some(first) = set_names.first() else { return Ok(None) };
        let missing = |name: &str, expected: &str| {
            error::usage(format!(
                "the environment variable {name} is not set though {first} is; expected {expected} (or none of \
                 {COORDINATOR}, {PROCESS_ID} and {NUM_PROCESSES} for a single process)"
            ))
        };
        let coordinator = coordinator.ok_or_else(|| missing(COORDINATOR, expected_coordinator))?;
        let index = index.ok_or_else(|| missing(PROCESS_ID, expected_id))?;
        let count = count.ok_or_else(|| missing(NUM_PROCESSES, expected_count))?;
        if count == 0 {
            return Err(invalid(NUM_PROCESSES, "0", expected_count));
        }
        if index >= count {
            let expected = format!("0 to {}, as {NUM_PROCESSES} is {count}", count - 1);
            return Err(invalid(PROCESS_ID, &index.to_string(), &expected));
        }
        Process::new(index, count, &coordinator)
            .map(Some)
            .map_err(|e| error::usage(format!("the environment variable {COORDINATOR}: {e}")))
    }

    fn libtpu_process(&self) -> Result<Option<Process>> {
        let Some((index, hosts)) = self.process_of_slice()? else { return self.slices(0, &[]) };
        if let Some(process) = self.slices(index, &hosts)? {
            return Ok(Some(process));
        }
        if hosts.len() == 1 {
            return Ok(None);
        }
        let coordinator = launcher::address(&hosts[0], DEFAULT_PORT);
        let process = Process::new(index, hosts.len(), coordinator).map_err(|e| {
            error::usage(format!("the host of process 0, from libtpu's variables: {e}"))
        })?;
        Ok(Some(process.with_hosts(hosts)))
    }

    /// The addresses of the processes of a slice, and the variable that names them. GKE writes them
    /// to a file.
    fn process_addresses(&self) -> Result<Option<(&'static str, String)>> {
        const FILE: &str = "TPU_PROCESS_ADDRESSES_PATH";
        const LIST: &str = "TPU_PROCESS_ADDRESSES";
        let Some(path) = self.text(FILE)? else { return Ok(self.text(LIST)?.map(|it| (LIST, it))) };
        let list = std::fs::read_to_string(&path).map_err(|e| {
            error::usage(format!("the environment variable {FILE}: cannot read {path}: {e}"))
        })?;
        if list.trim().is_empty() {
            return Err(error::usage(format!(
                "the environment variable {FILE}: {path} is empty; expected the host:port of every process, separated by \
                 commas"
            )));
        }
        Ok(Some((FILE, list.trim().to_owned())))
    }

    /// The index of this process in its slice, and the host of each process of the slice. `None`
    /// without libtpu's variables.
    fn process_of_slice(&self) -> Result<Option<(usize, Vec<String>)>> {
        const TASK: &str = "CLOUD_TPU_TASK_ID";
        const WORKER: &str = "TPU_WORKER_ID";
        const HOSTS: &str = "TPU_WORKER_HOSTNAMES";
        let list = |text: &str| text.split(',').map(|h| h.trim().to_owned()).collect::<Vec<_>>();
        let several = self.process_addresses()?;
        let several =
            several.map(|(name, text)| (name, list(&text))).filter(|(_, it)| it.len() > 1);
        // With several processes on a host, `WORKER` identifies the host and `TASK` the process. GKE
        // starts one process on a host, and sets no `TASK`.
        let (id_names, hosts_name, hosts) = match several {
            Some((name, processes)) => {
                let host =
                    |a: &String| a.rsplit_once(':').map_or(&**a, |(host, _)| host).to_owned();
                ([TASK, WORKER], name, processes.iter().map(host).collect())
            }
            None => {
                let hosts = self.text(HOSTS)?;
                ([WORKER, TASK], HOSTS, hosts.as_deref().map(list).unwrap_or_default())
            }
        };
        let id_name = id_names[0];
        let expected = "the index of this worker, from 0";
        let mut index = None;
        for name in id_names {
            if index.is_none() {
                index = self.number(name, expected)?.map(|index| (name, index));
            }
        }
        let (id_name, index) = match (index, hosts.len()) {
            (None, 0 | 1) => return Ok(None),
            (None, count) => {
                return Err(error::usage(format!(
                    "the environment variable {hosts_name} names {count} hosts, but {id_name} is not set; expected \
                     {expected} to {}",
                    count - 1
                )));
            }
            (Some((name, _)), 0) => {
                return Err(error::usage(format!(
                    "the environment variable {name} is set, but {hosts_name} is not; expected the names of all \
                     hosts, separated by commas (unset {name} for a single process)"
                )));
            }
            (Some(index), _) => index,
        };
        if let Some(empty) = hosts.iter().position(String::is_empty) {
            return Err(error::usage(format!(
                "the environment variable {hosts_name} has no name at index {empty}; expected names separated by commas"
            )));
        }
        if index >= hosts.len() {
            let expected =
                format!("0 to {}, as {hosts_name} names {}", hosts.len() - 1, hosts.len());
            return Err(invalid(id_name, &index.to_string(), &expected));
        }
        self.check_bounds(hosts_name, hosts.len())?;
        Ok(Some((index, hosts)))
    }

    /// libtpu arranges the processes of a slice in a grid, and waits for all of them.
    fn check_bounds(&self, hosts_name: &str, processes: usize) -> Result<()> {
        const BOUNDS: &str = "TPU_PROCESS_BOUNDS";
        let Some(bounds) = self.text(BOUNDS)? else { return Ok(()) };
        let product = bounds
            .split(',')
            .map(|size| size.trim().parse::<usize>().ok())
            .try_fold(1_usize, |product, size| product.checked_mul(size?));
        if product == Some(processes) {
            return Ok(());
        }
        let expected = format!(
            "numbers of processes along each axis, such as `2,2,1`, whose product is {processes}, as {hosts_name} names \
             {processes}"
        );
        Err(invalid(BOUNDS, &bounds, &expected))
    }

    /// The process of a run over several slices, from its index and the hosts in its slice. libtpu
    /// counts the processes slice by slice, and its Megascale runtime listens on the host of process
    /// 0. JAX reads these variables in the same way.
    fn slices(&self, index: usize, hosts: &[String]) -> Result<Option<Process>> {
        const COUNT: &str = "MEGASCALE_NUM_SLICES";
        const INDEX: &str = "MEGASCALE_SLICE_ID";
        const ADDRESS: &str = "MEGASCALE_COORDINATOR_ADDRESS";
        const PORT: &str = "MEGASCALE_PORT";
        let expected_count = "the number of slices, at least 1";
        let expected_index = "the index of this slice, from 0";
        let missing = |name: &str, related: &str, expected: &str| {
            error::usage(format!(
                "the environment variable {name} is not set though {related} is; expected {expected}"
            ))
        };
        let address = self.text(ADDRESS)?;
        let count = match (self.number(COUNT, expected_count)?, &address) {
            (Some(0), _) => return Err(invalid(COUNT, "0", expected_count)),
            (Some(1), _) | (None, None) => return Ok(None),
            (Some(count), _) => count,
            (None, Some(_)) if hosts.is_empty() => return Ok(None),
            (None, Some(_)) => return Err(missing(COUNT, ADDRESS, expected_count)),
        };
        let slice = self.number(INDEX, expected_index)?;
        let slice = slice.ok_or_else(|| missing(INDEX, COUNT, expected_index))?;
        if slice >= count {
            let expected = format!("0 to {}, as {COUNT} is {count}", count - 1);
            return Err(invalid(INDEX, &slice.to_string(), &expected));
        }
        let expected_address = "the host of process 0";
        let address = address.ok_or_else(|| missing(ADDRESS, COUNT, expected_address))?;
        let expected_port = "a port of process 0's host for libtpu";
        if self.number(PORT, expected_port)? == Some(usize::from(DEFAULT_PORT)) {
            let expected = format!("{expected_port} other than that of Fulmen, {DEFAULT_PORT}");
            return Err(invalid(PORT, &DEFAULT_PORT.to_string(), &expected));
        }
        let of_each = hosts.len().max(1);
        let coordinator = launcher::address(launcher::host(&address), DEFAULT_PORT);
        Process::new(slice * of_each + index, count.saturating_mul(of_each), coordinator)
            .map(Some)
            .map_err(|e| error::usage(format!("the environment variable {ADDRESS}: {e}")))
    }
}

fn invalid(name: &str, value: &str, expected: &str) -> Error {
    error::usage(format!("the environment variable {name} is `{value}`; expected {expected}"))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(variables: &[(&str, &str)], expect: Expect) {
        let env = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.into());
        let shown = match Process::from_env(env) {
            Ok(process) => format!(
                "{process} at {} {:?} {}",
                process.coordinator(),
                process.hosts(),
                process.run_id()
            ),
            Err(error) => {
                assert!(error.is_usage());
                error.to_string()
            }
        };
        expect.assert_eq(shown.trim_end());
    }

    #[test]
    fn without_variables_there_is_a_single_process() {
        check(&[], expect!["process 0 of 1 at 127.0.0.1:0 []"]);
        check(&[("FULMEN_COORDINATOR", " ")], expect!["process 0 of 1 at 127.0.0.1:0 []"]);
        check(
            &[("TPU_WORKER_HOSTNAMES", "localhost")],
            expect!["process 0 of 1 at 127.0.0.1:0 []"],
        );
        check(
            &[("TPU_WORKER_HOSTNAMES", "localhost"), ("TPU_WORKER_ID", "0")],
            expect!["process 0 of 1 at 127.0.0.1:0 []"],
        );
    }

    #[test]
    fn fulmens_own_variables_come_first() {
        let own = [
            ("FULMEN_COORDINATOR", "host-a:99"),
            ("FULMEN_PROCESS_ID", "3"),
            ("FULMEN_NUM_PROCESSES", "4"),
        ];
        check(&own, expect!["process 3 of 4 at host-a:99 []"]);
        let mut variables =
            vec![("TPU_WORKER_ID", "x"), ("MEGASCALE_NUM_SLICES", "2"), ("FULMEN_RUN_ID", "r1")];
        variables.extend(own);
        check(&variables, expect!["process 3 of 4 at host-a:99 [] r1"]);
    }

    #[test]
    fn the_token_is_never_shown() {
        let token = "secret-".repeat(6);
        let with = |token: OsString| {
            Process::from_env(move |name| (name == RUN_TOKEN).then(|| token.clone()))
        };
        let process = with(format!(" {token}\n").into()).unwrap();
        assert_eq!(process, Process::single().with_run_token(&token).unwrap());
        assert_ne!(process, Process::single());
        assert!(!format!("{process} {process:?}").contains("secret"));
        assert_eq!(with(" ".into()).unwrap(), Process::single());
        check(
            &[(RUN_TOKEN, "secret")],
            expect![
                "the environment variable FULMEN_RUN_TOKEN: the token of the run has 6 characters; expected at least 32, drawn at random (`openssl rand -hex 32` prints some)"
            ],
        );
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStringExt as _;
            let error = with(OsString::from_vec(b"secret\xff".repeat(8))).unwrap_err().to_string();
            assert_eq!(
                error,
                "the environment variable FULMEN_RUN_TOKEN: its value is not text in UTF-8"
            );
        }
    }

    #[test]
    fn missing_and_wrong_variables_are_named() {
        check(
            &[("FULMEN_PROCESS_ID", "3")],
            expect![
                "the environment variable FULMEN_COORDINATOR is not set though FULMEN_PROCESS_ID is; expected the host:port at which process 0 listens (or none of FULMEN_COORDINATOR, FULMEN_PROCESS_ID and FULMEN_NUM_PROCESSES for a single process)"
            ],
        );
        let with = |id, count, address, message: Expect| {
            check(
                &[
                    ("FULMEN_COORDINATOR", address),
                    ("FULMEN_PROCESS_ID", id),
                    ("FULMEN_NUM_PROCESSES", count),
                ],
                message,
            )
        };
        with(
            "-1",
            "4",
            "a:1",
            expect![
                "the environment variable FULMEN_PROCESS_ID is `-1`; expected the index of this process, from 0"
            ],
        );
        with(
            "4",
            "4",
            "a:1",
            expect![
                "the environment variable FULMEN_PROCESS_ID is `4`; expected 0 to 3, as FULMEN_NUM_PROCESSES is 4"
            ],
        );
        with(
            "0",
            "0",
            "a:1",
            expect![
                "the environment variable FULMEN_NUM_PROCESSES is `0`; expected the number of processes, at least 1"
            ],
        );
        with(
            "0",
            "four",
            "a:1",
            expect![
                "the environment variable FULMEN_NUM_PROCESSES is `four`; expected the number of processes, at least 1"
            ],
        );
        with(
            "0",
            "4",
            "host-a",
            expect![
                "the environment variable FULMEN_COORDINATOR: the coordinator's address is `host-a`; expected host:port, such as `host-a:8482` or `[fe80::1]:8482`"
            ],
        );
        with(
            "0",
            "4",
            "http://a:1",
            expect![
                "the environment variable FULMEN_COORDINATOR: the coordinator's address is `http://a:1`; expected host:port, such as `host-a:8482` or `[fe80::1]:8482`"
            ],
        );
        with(
            "1",
            "4",
            "a:0",
            expect![
                "the environment variable FULMEN_COORDINATOR: the coordinator's address is `a:0`; only process 0 can let the system choose a port; give process 1 that port"
            ],
        );
        with(
            "0",
            "99999999",
            "a:1",
            expect![
                "the environment variable FULMEN_COORDINATOR: 99999999 processes are not possible; expected 1 to 65536"
            ],
        );
    }

    #[test]
    fn libtpus_variables_name_the_hosts() {
        let hosts = ("TPU_WORKER_HOSTNAMES", "host-a, host-b,host-c");
        check(
            &[hosts, ("TPU_WORKER_ID", "2")],
            expect![[r#"process 2 of 3 at host-a:8482 ["host-a", "host-b", "host-c"]"#]],
        );
        check(
            &[hosts, ("CLOUD_TPU_TASK_ID", "1")],
            expect![[r#"process 1 of 3 at host-a:8482 ["host-a", "host-b", "host-c"]"#]],
        );
        check(
            &[hosts],
            expect![
                "the environment variable TPU_WORKER_HOSTNAMES names 3 hosts, but TPU_WORKER_ID is not set; expected the index of this worker, from 0 to 2"
            ],
        );
        check(
            &[("TPU_WORKER_ID", "1")],
            expect![
                "the environment variable TPU_WORKER_ID is set, but TPU_WORKER_HOSTNAMES is not; expected the names of all hosts, separated by commas (unset TPU_WORKER_ID for a single process)"
            ],
        );
        check(
            &[hosts, ("TPU_WORKER_ID", "3")],
            expect![
                "the environment variable TPU_WORKER_ID is `3`; expected 0 to 2, as TPU_WORKER_HOSTNAMES names 3"
            ],
        );
        check(
            &[("TPU_WORKER_HOSTNAMES", "a,,c"), ("TPU_WORKER_ID", "0")],
            expect![
                "the environment variable TPU_WORKER_HOSTNAMES has no name at index 1; expected names separated by commas"
            ],
        );
        check(
            &[("TPU_WORKER_HOSTNAMES", "::1,::2"), ("TPU_WORKER_ID", "0")],
            expect![[r#"process 0 of 2 at [::1]:8482 ["::1", "::2"]"#]],
        );
    }

    #[test]
    fn several_processes_on_a_host_have_addresses() {
        check(
            &[
                ("TPU_WORKER_HOSTNAMES", "localhost"),
                ("TPU_WORKER_ID", "0"),
                ("TPU_PROCESS_ADDRESSES", "localhost:8476,localhost:8477"),
                ("CLOUD_TPU_TASK_ID", "1"),
            ],
            expect![[r#"process 1 of 2 at localhost:8482 ["localhost", "localhost"]"#]],
        );
        // Four chips of a host, each with a process of its own.
        let of_chips = [
            ("TPU_PROCESS_ADDRESSES", "a:8476,a:8477,a:8478,a:8479"),
            ("CLOUD_TPU_TASK_ID", "3"),
            ("TPU_PROCESS_BOUNDS", "2,2,1"),
            ("TPU_CHIPS_PER_PROCESS_BOUNDS", "1,1,1"),
            ("TPU_VISIBLE_CHIPS", "3"),
            ("TPU_PROCESS_PORT", "8479"),
        ];
        check(&of_chips, expect![[r#"process 3 of 4 at a:8482 ["a", "a", "a", "a"]"#]]);
        for wrong in ["1,2,1", "2,2,x", "2,2,99999999999999999999"] {
            let env = |name: &str| {
                let set = of_chips.iter().find(|v| v.0 == name).map(|v| v.1);
                set.map(|value| if name == "TPU_PROCESS_BOUNDS" { wrong } else { value }.into())
            };
            let error = Process::from_env(env).unwrap_err().to_string();
            let expected =
                format!("TPU_PROCESS_BOUNDS is `{wrong}`; expected numbers of processes");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn bounds_have_a_fourth_number_on_7x() {
        // Each chip is two devices.
        let of_devices = [
            ("TPU_PROCESS_ADDRESSES", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8"),
            ("CLOUD_TPU_TASK_ID", "7"),
            ("TPU_PROCESS_BOUNDS", "2,2,1,2"),
        ];
        let hosts = r#"["a", "a", "a", "a", "a", "a", "a", "a"]"#;
        let env = |name: &str| of_devices.iter().find(|v| v.0 == name).map(|v| v.1.into());
        let process = Process::from_env(env).unwrap();
        assert_eq!(process.to_string(), "process 7 of 8");
        assert_eq!(format!("{:?}", process.hosts()), hosts);
    }

    #[test]
    fn addresses_in_a_file_come_before_those_in_variables() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("addresses");
        std::fs::write(&file, "  10.0.0.1:8476,10.0.0.2:8476 \n").unwrap();
        let path = file.to_str().unwrap();
        let gke = [
            ("TPU_PROCESS_ADDRESSES_PATH", path),
            ("TPU_PROCESS_ADDRESSES", "other:8476,other:8477"),
            ("TPU_WORKER_HOSTNAMES", "worker-0,worker-1,worker-2"),
            ("TPU_WORKER_ID", "1"),
        ];
        check(&gke, expect![[r#"process 1 of 2 at 10.0.0.1:8482 ["10.0.0.1", "10.0.0.2"]"#]]);
        let error = |variables: &[(&str, &str)]| {
            let env = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.into());
            Process::from_env(env).unwrap_err().to_string()
        };
        assert_eq!(
            error(&[gke[0], gke[2]]),
            "the environment variable TPU_PROCESS_ADDRESSES_PATH names 2 hosts, but CLOUD_TPU_TASK_ID is not set; \
             expected the index of this worker, from 0 to 1"
        );
        std::fs::write(&file, " \n").unwrap();
        assert!(
            error(&gke).contains("addresses is empty; expected the host:port of every process")
        );
        std::fs::remove_file(&file).unwrap();
        let missing = error(&gke);
        let expected = "the environment variable TPU_PROCESS_ADDRESSES_PATH: cannot read";
        assert!(missing.starts_with(expected), "{missing}");
    }

    /// The variables of process 1 of the second of two slices, and these in their place.
    fn in_slices(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        let google = [
            ("TPU_WORKER_HOSTNAMES", "c,d"),
            ("TPU_WORKER_ID", "1"),
            ("MEGASCALE_COORDINATOR_ADDRESS", "a:8080"),
            ("MEGASCALE_NUM_SLICES", "2"),
            ("MEGASCALE_SLICE_ID", "1"),
            ("MEGASCALE_PORT", "8080"),
        ];
        [changes, &google].concat()
    }

    #[test]
    fn processes_are_counted_slice_by_slice() {
        check(&in_slices(&[]), expect!["process 3 of 4 at a:8482 []"]);
        check(&in_slices(&[("MEGASCALE_SLICE_ID", "0")]), expect!["process 1 of 4 at a:8482 []"]);
        let three = [("MEGASCALE_NUM_SLICES", "3"), ("MEGASCALE_SLICE_ID", "2")];
        check(&in_slices(&three), expect!["process 5 of 6 at a:8482 []"]);
        let one_host = [("TPU_WORKER_HOSTNAMES", "localhost"), ("TPU_WORKER_ID", "0")];
        check(&in_slices(&one_host), expect!["process 1 of 2 at a:8482 []"]);
        let no_hosts = [("TPU_WORKER_HOSTNAMES", ""), ("TPU_WORKER_ID", "")];
        check(&in_slices(&no_hosts), expect!["process 1 of 2 at a:8482 []"]);
        let without_port = [("MEGASCALE_COORDINATOR_ADDRESS", "10.0.0.2"), ("MEGASCALE_PORT", "")];
        check(&in_slices(&without_port), expect!["process 3 of 4 at 10.0.0.2:8482 []"]);
        for address in ["fe80::1", "[fe80::1]", "[fe80::1]:8080"] {
            let ipv6 = [("MEGASCALE_COORDINATOR_ADDRESS", address)];
            check(&in_slices(&ipv6), expect!["process 3 of 4 at [fe80::1]:8482 []"]);
        }
        let one = [("MEGASCALE_NUM_SLICES", "1"), ("MEGASCALE_SLICE_ID", "0")];
        check(&in_slices(&one), expect![[r#"process 1 of 2 at c:8482 ["c", "d"]"#]]);
    }

    #[test]
    fn wrong_variables_of_slices_are_named() {
        check(
            &in_slices(&[("MEGASCALE_NUM_SLICES", "")]),
            expect![
                "the environment variable MEGASCALE_NUM_SLICES is not set though MEGASCALE_COORDINATOR_ADDRESS is; expected the number of slices, at least 1"
            ],
        );
        check(
            &in_slices(&[("MEGASCALE_NUM_SLICES", "0")]),
            expect![
                "the environment variable MEGASCALE_NUM_SLICES is `0`; expected the number of slices, at least 1"
            ],
        );
        check(
            &in_slices(&[("MEGASCALE_SLICE_ID", "")]),
            expect![
                "the environment variable MEGASCALE_SLICE_ID is not set though MEGASCALE_NUM_SLICES is; expected the index of this slice, from 0"
            ],
        );
        check(
            &in_slices(&[("MEGASCALE_SLICE_ID", "2")]),
            expect![
                "the environment variable MEGASCALE_SLICE_ID is `2`; expected 0 to 1, as MEGASCALE_NUM_SLICES is 2"
            ],
        );
        check(
            &in_slices(&[("MEGASCALE_COORDINATOR_ADDRESS", "")]),
            expect![
                "the environment variable MEGASCALE_COORDINATOR_ADDRESS is not set though MEGASCALE_NUM_SLICES is; expected the host of process 0"
            ],
        );
        check(
            &in_slices(&[("MEGASCALE_PORT", "8482")]),
            expect![
                "the environment variable MEGASCALE_PORT is `8482`; expected a port of process 0's host for libtpu other than that of Fulmen, 8482"
            ],
        );
        check(
            &in_slices(&[("TPU_WORKER_ID", "2")]),
            expect![
                "the environment variable TPU_WORKER_ID is `2`; expected 0 to 1, as TPU_WORKER_HOSTNAMES names 2"
            ],
        );
    }
}
