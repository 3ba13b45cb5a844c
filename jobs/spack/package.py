# Spack: put this file into `packages/py_mpi_tf_harness` of a repository of your own, then
# `spack install py-mpi-tf-harness`. The MPI library is Spack's: `HARNESS_MPI=system`, which the module sets.

from spack.package import PythonPackage, depends_on, license, version


class PyMpiTfHarness(PythonPackage):
    """Measure how well synchronous TensorFlow training scales over MPI."""

    homepage = "https://arxiv.org/abs/1603.02339"
    url = "file:///path/to/mpi_tf_harness-0.2.0.tar.gz"  # `python -m build` in a checkout makes it

    license("Apache-2.0")

    version("0.2.0")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling", type="build")
    depends_on("mpi", type=("build", "run"))
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-matplotlib@3.8:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-msgspec@0.18.5:", type=("build", "run"))
    depends_on("py-netcdf4@1.6.1:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pandas@2.1:", type=("build", "run"))
    depends_on("py-pooch@1.8:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-py-cpuinfo@9:", type=("build", "run"))
    depends_on("py-pyarrow@15:", type=("build", "run"))
    depends_on("py-requests@2.28:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-scikit-learn@1.4:", type=("build", "run"))
    depends_on("py-scipy@1.11:", type=("build", "run"))
    depends_on("py-tensorflow@2.16:", type=("build", "run"))

    def setup_run_environment(self, env):
        env.set("HARNESS_MPI", "system")
