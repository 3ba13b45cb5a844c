# Every target is one call of the harness (or of pytest, ruff, mypy) in .venv, which is set up on first use.
# Relative paths throughout: the folder's own name may have spaces.

SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.stamp

# $(call quote,NAME): the variable's text as one word for the shell, whatever it holds.
quote = '$(subst ','\'',$(value $(1)))'
# $(call option,NAME,option): --option and its value, or nothing when NAME is not set.
option = $(if $(value $(1)), --$(2) $(call quote,$(1)))
# $(call switch,NAME,option): --option when NAME is set to anything but 0.
switch = $(if $(filter-out 0,$(value $(1))), --$(2))

HARNESS = $(if $(value MPI),HARNESS_MPI=$(call quote,MPI) )$(BIN)/harness

TRAINING = $(call option,PRESET,preset)$(call option,EPOCHS,epochs)$(call option,SAMPLES,samples)$(call \
	option,BATCH_PER_RANK,batch-per-rank)$(call option,GLOBAL_BATCH,global-batch)$(call \
	option,SYNC,sync)$(call option,WIRE,wire)$(call option,OPTIMIZER,optimizer)$(call option,LEARNING_RATE,learning-rate)$(call \
	option,SCHEDULE,schedule)$(call option,LOSS,loss)$(call option,INIT,init)$(call option,AUGMENT,augment)$(call option,SEED,seed)$(call \
	option,DISTRIBUTION,distribution)$(IMAGES)
IMAGES = $(call option,IMAGE_SIZE,image-size)$(call option,CLASSES,classes)$(call option,INPUT,input)$(call \
	option,PRECISION,precision)$(call switch,SYNC_BN,sync-bn)$(call switch,XLA,xla)$(call option,DECAY,decay)$(call \
	option,RATE_SCALING,rate-scaling)$(call option,WARMUP_EPOCHS,warmup-epochs)$(call \
	option,WEIGHT_DECAY,weight-decay)$(call option,LABEL_SMOOTHING,label-smoothing)
WORKLOAD = $(call option,SCRIPT,script)$(call option,ARGUMENTS,script-arguments)$(call \
	option,SCRIPT_BATCH,script-batch)$(call option,DATASET,dataset)$(call option,DATA,data)$(call option,DATA_KIND,data-kind)$(call \
	option,DATA_DIR,data-dir)$(call option,MODEL,model)$(TRAINING)
LAYOUTS = $(call option,NODES,nodes)$(call option,CORES,cores)$(call option,GPUS,gpus)$(call \
	option,RANKS_PER_NODE,ranks-per-node)$(call option,THREADS,threads)$(call switch,ZIP,zip)$(call option,REPEATS,repeats)$(call option,SCALING,scaling)$(call \
	option,SHARES,shares)$(call switch,OVERSUBSCRIBE,oversubscribe)
COST = $(call option,MAX_NODE_HOURS,max-node-hours)$(call switch,YES,yes)
BATCH = $(call option,SCHEDULER,scheduler)$(call option,SITE,site)$(call switch,NESTED,nested)$(call \
	switch,ARRAY,array)$(call option,PARTITION,partition)$(call option,ACCOUNT,account)$(call \
	option,PROJECT,project)$(call option,QOS,qos)$(call option,CONSTRAINT,constraint)$(call \
	option,RESERVATION,reservation)$(call option,WALLTIME,walltime)$(call option,MEMORY,memory)$(call \
	switch,SHARE_NODES,share-nodes)$(call option,MAIL,mail)$(call switch,REQUEUE,requeue)$(call \
	option,SIGNAL,signal)$(call option,AFTER,after)$(call option,LAUNCHER,launcher)$(call \
	option,MAX_JOBS,max-jobs)$(call option,TEMPLATE,template)$(COST)
FOLDERS = $(call option,RESULTS,results)$(call option,REPORTS,reports)

PYTEST = $(BIN)/python -m pytest --durations=10 --durations-min=1
ALONE := mpi or e2e or cluster
LONG := slow or $(ALONE)

.PHONY: help sweep status collect cancel retry site report check baseline paper claims predict probe bench data doctor test test-all lint lock clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile
	@echo
	@echo 'make sweep DATASET=mnist NODES=1..2        the first thing to try: a few minutes on 2 cores'
	@echo 'make sweep DATASET=higgs NODES=1..8 DATA_DIR=folder REPEATS=6'
	@echo
	@echo 'What:   DATASET= or DATA=file or SCRIPT=train.py, DATA_DIR= DATA_KIND=auto|real|synthetic MODEL=dnn|cnn|package.module:function'
	@echo 'How:    PRESET= EPOCHS= SAMPLES= BATCH_PER_RANK= GLOBAL_BATCH= OPTIMIZER= LEARNING_RATE= SEED='
	@echo '        SYNC=gradients|weights:K|weights:epoch SCHEDULE= LOSS= INIT= AUGMENT= DISTRIBUTION='
	@echo '        IMAGE_SIZE= CLASSES= INPUT=resident|files PRECISION= SYNC_BN=1 (ImageNet; see README.md)'
	@echo 'Where:  NODES=1..8|1..64*2|1,2,4 RANKS_PER_NODE= THREADS= REPEATS= SCALING=strong|weak SHARES=2:1:1'
	@echo '        CORES=1..32 or GPUS=1..8 instead of NODES=, ZIP=1 takes lists one by one'
	@echo 'Batch:  SCHEDULER=auto|local|slurm|pbs SITE= NESTED=1 ARRAY=1 PARTITION= ACCOUNT= PROJECT= QOS= CONSTRAINT='
	@echo '        RESERVATION= WALLTIME=0:30:00 MEMORY=16G SHARE_NODES=1 MAIL= REQUEUE=1 SIGNAL=60 AFTER=job LAUNCHER='
	@echo '        MAX_JOBS= TEMPLATE=file MAX_NODE_HOURS= YES=1'
	@echo 'Other:  OVERSUBSCRIBE=1 DRY_RUN=1 MPI=system RESULTS=folder REPORTS=folder PYTHON=python3.11'

sweep: $(STAMP) ## Plan, launch, collect and report a scaling study; the last line is the report.
	@$(HARNESS) sweep$(WORKLOAD)$(LAYOUTS)$(BATCH)$(FOLDERS)$(call switch,TUNED,tuned)$(call \
		switch,DRY_RUN,dry-run)$(call switch,PREDICT_FIRST,predict-first)$(call option,NETWORK,network)

status: $(STAMP) ## Tell how far a sweep is: SWEEP=name, or all of them.
	@$(HARNESS) status$(call option,RESULTS,results)$(if $(value SWEEP), -- $(call quote,SWEEP))

collect: $(STAMP) ## Take in what a batch system has finished of SWEEP=; WAIT=1 waits for the rest.
	@$(HARNESS) collect$(call switch,WAIT,wait)$(FOLDERS)$(if $(value SWEEP), -- $(call quote,SWEEP))

cancel: $(STAMP) ## End what a batch system still has of SWEEP=.
	@$(HARNESS) cancel$(call option,RESULTS,results)$(if $(value SWEEP), -- $(call quote,SWEEP))

retry: $(STAMP) ## Launch again what failed or has invalid times of SWEEP=.
	@$(HARNESS) retry$(COST)$(FOLDERS)$(if $(value SWEEP), -- $(call quote,SWEEP))

site: $(STAMP) ## Check SITE=, a file of jobs/sites, against the live batch system.
	@$(HARNESS) site check$(if $(value SITE), -- $(call quote,SITE))

report: $(STAMP) ## Draw the report of SWEEP=results/name again from its records; BASE=16: over 16 ranks.
	@$(HARNESS) report$(FOLDERS)$(call option,BASE,base)$(if $(value SWEEP), -- $(call quote,SWEEP))

check: $(STAMP) ## Did it get worse? Newest launches AGAINST= a baseline; DECIDE=1 measures first.
	@$(HARNESS) check$(call option,AGAINST,against)$(call switch,DECIDE,decide)$(call option,BUDGET,budget)$(call \
		option,SIZE,size)$(call option,SUMMARY,markdown)$(call option,JUNIT,junit)$(call option,DATA_DIR,data-dir)$(call \
		option,RESULTS,results)$(if $(value SWEEP), -- $(call quote,SWEEP))

baseline: $(STAMP) ## Keep the newest sweep's launches (or SWEEP='s) as baseline NAME=.
	@$(HARNESS) baseline save$(call option,NOTE,note)$(call option,RESULTS,results) -- $(call quote,NAME)$(if $(value \
		SWEEP), $(call quote,SWEEP))

paper: $(STAMP) ## Repeat the paper's seven experiments at the core counts this machine has.
	@$(HARNESS) paper$(call option,DATA_DIR,data-dir)$(call option,PRESET,preset)$(call option,NODES,nodes)$(call \
		option,REPEATS,repeats)$(call option,EPOCHS,epochs)$(call option,SAMPLES,samples)$(FOLDERS)

claims: $(STAMP) ## Judge the papers' published numbers by the runs that are here; runs nothing.
	@$(HARNESS) claims$(call option,NETWORK,network)$(FOLDERS)

predict: $(STAMP) ## Predict step time and speedup on NODES=1..1024*2 with NETWORK=alpha,beta or probe.json.
	@$(HARNESS) predict$(call option,NETWORK,network)$(call option,NODES,nodes)$(call option,RANKS_PER_NODE,ranks-per-node)$(call \
		option,RESULTS,results)$(call switch,SIMULATE,simulate)

probe: $(STAMP) ## Measure latency, bandwidth and sums between RANKS=2 of this machine, and the best setting.
	@$(HARNESS) probe$(call option,RANKS,ranks)$(call switch,ALGORITHMS,algorithms)$(FOLDERS)

bench: $(STAMP) ## Measure the harness against its alternatives, side by side.
	@$(HARNESS) bench$(call option,WORKLOADS,workloads)$(call option,ROUNDS,rounds)$(call option,ROWS,rows)$(call \
		switch,QUICK,quick)$(call switch,DECODING,decoding)$(call switch,FORCE,force)$(call option,REPORTS,reports)

data: $(STAMP) ## Originals of DATASET=: ACTION=list|fetch|verify|prepare|info.
	@$(HARNESS) data $(if $(value ACTION),$(call quote,ACTION),list)$(call option,DATA_DIR,data-dir)$(if $(value \
		DATASET), -- $(call quote,DATASET))

doctor: $(STAMP) ## Tell which MPI, TensorFlow, cores, memory, compiler and GPUs are in use.
	@$(HARNESS) doctor$(call option,DATA_DIR,data-dir)

test: $(STAMP) ## Run what a change passes first, six minutes on 2 cores, or TESTS=tests/test_sweep_plan.py.
	@$(if $(value TESTS),$(PYTEST) $(call quote,TESTS),$(PYTEST) -n 2 -m 'not ($(LONG))' && $(PYTEST) -m smoke)

test-all: test ## Run every test: also all that start ranks or schedulers or take long.
	@$(PYTEST) -n 2 -m 'slow and not ($(ALONE))'
	@$(PYTEST) -m 'not smoke and ($(ALONE))'

lint: $(STAMP) ## Check style, types, floors, dead code and shell scripts.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/vulture | { ! grep -v "unused variable '[a-z]"; }
	@$(BIN)/shellcheck .ci/run

lock: $(STAMP) ## Choose the newest versions for requirements.lock.
	@$(BIN)/uv pip compile pyproject.toml --extra dev --generate-hashes --no-annotate --upgrade --python-version 3.11 \
		--no-emit-index-url --custom-compile-command 'make lock' --quiet --output-file requirements.lock

clean: ## Remove .venv and caches; results and reports stay.
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find harness tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
		'Python 3.11 or newer is needed: install it and say make PYTHON=python3.11'; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo >&2 \
		'Python has no venv: install it (Debian: apt-get install python3-venv)'; exit 2; }
	@echo 'setting up .venv from requirements.lock: once, a few minutes, about 2 GB'
	@rm -f $(STAMP)
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m harness.comm.native.build
	@touch $(STAMP)
