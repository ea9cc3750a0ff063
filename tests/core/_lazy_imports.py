"""Every import of a module of ours that a function makes, and why it does not stand at the top.

file -> reason -> modules. None of them avoids a circle: `test_import_rules.py` counts them, too.
"""

from __future__ import annotations

_COMMAND = "of one command only; `torchkiln --help` and the other commands start without it"
_HEAVY = "loads torch, numpy, numba or PyG; flags are read, checked and explained without"
_NUMBA = "loads numba, which takes half a second; only those who run the loop wait for it"
_PYG = "loads PyG, which takes seconds; the caller has it already, other programs may never"
_TRACING = "loads tracing and code generation; a program that the cache holds needs neither"
_BAR = "loads a progress bar; where all native helpers are built there is none to draw"
_EXTRA = "loads a package that is no requirement; only those who ask for it must have it"
_HEAVY_WORLD = "loads torch; whether this process is one of several is asked before, too"
_PIN = "threads are pinned before torch is loaded, and only by a process that has not loaded it"

LAZY = {
    "poptorch._args": {_PYG: "torchkiln.graphs._containers"},
    "torchkiln.cli": {
        _COMMAND: """
            torchkiln.apps._command_line torchkiln.apps.cosmic torchkiln.apps.schnet
            torchkiln.apps.steps
            torchkiln.commands._cache torchkiln.commands._completion torchkiln.commands._dispatch
            torchkiln.commands._doctor torchkiln.commands._fit
            torchkiln.commands._models
            torchkiln.commands._plan torchkiln.commands._predict
            torchkiln.commands._runs
            torchkiln.core
        """,
    },
    "torchkiln.commands._cache": {_HEAVY: "torchkiln.runtime.cache._cache"},
    "torchkiln.commands._completion": {
        "of one application each; both have a function of that name": """
            torchkiln.apps.cosmic._arguments torchkiln.apps.schnet._config_file
        """,
    },
    "torchkiln.commands._data": {
        _COMMAND: """
            torchkiln.datasets torchkiln.datasets._array_cache torchkiln.datasets.cosmic._files
            torchkiln.datasets.fashion_mnist._files torchkiln.datasets.files._sample
            torchkiln.datasets.qm9._arrays torchkiln.datasets.qm9._source torchkiln.datasets.water
        """,
    },
    "torchkiln.commands._doctor_caches": {
        "what cannot be imported is a finding, and the rest of the diagnosis goes on": """
            torchkiln.core torchkiln.datasets._array_cache torchkiln.ops._native
            torchkiln.runtime.cache._cache torchkiln.runtime.compile._inductor_workspace
        """,
    },
    "torchkiln.commands._doctor_processes": {_HEAVY: "torchkiln.distributed"},
    "torchkiln.commands._fit": {
        _HEAVY: """
            torchkiln.profiling.graph._module_times torchkiln.profiling.graph._profile
            torchkiln.profiling.views._write torchkiln.runtime
        """,
    },
    "torchkiln.commands._looking": {
        _COMMAND: """
            torchkiln.commands._graph_profile
            torchkiln.commands._monitor torchkiln.commands._profile
        """,
    },
    "torchkiln.commands._plan_sizes": {_HEAVY: "torchkiln.datasets torchkiln.graphs"},
    "torchkiln.commands._predict": {
        _PIN: "torchkiln.core._threads",
        _HEAVY: """
            torchkiln.apps.schnet torchkiln.apps.schnet._trained
            torchkiln.commands._predict_output torchkiln.datasets
            torchkiln.datasets.molecules._molecules torchkiln.datasets.molecules._targets
        """,
    },
    "torchkiln.commands._runs": {
        "draws, which loads matplotlib; tables of runs need no pictures": """
            torchkiln.report._comparison_page
        """,
    },
    "torchkiln.apps.cosmic._main": {
        _HEAVY: """
            torchkiln.apps._command_line torchkiln.apps._invocation torchkiln.apps._launch
            torchkiln.apps.cosmic._arguments torchkiln.apps.cosmic._devices
            torchkiln.apps.cosmic._experiment torchkiln.apps.cosmic._foretelling
            torchkiln.apps.cosmic._resumed_arguments
            torchkiln.training._interrupt torchkiln.training._restarts
        """,
    },
    "torchkiln.apps.schnet._main": {
        "start-up is timed from here on, imports included": """
            torchkiln.apps._command_line torchkiln.apps._invocation torchkiln.apps._launch
            torchkiln.apps.schnet._arguments torchkiln.apps.schnet._requirements
            torchkiln.apps.schnet._startup torchkiln.training._restarts
        """,
        _HEAVY: "torchkiln.apps.schnet._complete torchkiln.apps.schnet._experiment",
    },
    "torchkiln.apps.schnet._resumed_settings": {
        _HEAVY: "torchkiln.datasets.molecules._published_targets",
    },
    "torchkiln.apps._launch": {_HEAVY: "torchkiln.training._ranks"},
    "torchkiln.apps.schnet._building": {_HEAVY: "torchkiln.datasets.water"},
    "torchkiln.distributed._start": {_HEAVY_WORLD: "torchkiln.distributed._joining"},
    "torchkiln.report._monitors": {
        _EXTRA: "torchkiln.report._tensorboard torchkiln.report._wandb",
    },
    "torchkiln.datasets.molecules._interactions": {
        _NUMBA: "torchkiln.datasets.molecules._interaction_kernels",
    },
    "torchkiln.datasets.molecules._molecule_set": {_HEAVY: "torchkiln.graphs"},
    "torchkiln.datasets.qm9._graphs": {_HEAVY: "torchkiln.graphs"},
    "torchkiln.datasets.qm9._pyg": {_HEAVY: "torchkiln.datasets.qm9._view_pickle"},
    "torchkiln.datasets.water._frames": {_NUMBA: "torchkiln.datasets.water._frame_kernels"},
    "torchkiln.datasets.water._prepare": {_HEAVY: "torchkiln.datasets.water._potential"},
    "torchkiln.datasets.water._relax": {_NUMBA: "torchkiln.datasets.water._relax_kernels"},
    "torchkiln.graphs.batches._gather": {_NUMBA: "torchkiln.graphs.batches._collate_kernels"},
    "torchkiln.graphs.layers._capture": {
        _PYG: """
            torchkiln.graphs.layers._batch_norm torchkiln.graphs.layers._catalog
            torchkiln.graphs.layers._missing_watch torchkiln.graphs.layers._substitution
        """,
    },
    "torchkiln.graphs.layers._substitution": {
        "the code of a replaced function runs with that function's globals": (
            "torchkiln.graphs.layers._substitution"
        ),
    },
    "torchkiln.graphs.sampling._neighborhood": {
        _NUMBA: "torchkiln.graphs.sampling._neighbor_kernels",
    },
    "torchkiln.graphs.sampling._partition": {_NUMBA: "torchkiln.graphs.sampling._cluster_kernels"},
    "torchkiln.graphs.store._blocks": {_NUMBA: "torchkiln.graphs.store._block_kernels"},
    "torchkiln.graphs.store._columns": {_NUMBA: "torchkiln.graphs.store._store_kernels"},
    "torchkiln.graphs.store._texts": {_NUMBA: "torchkiln.graphs.store._store_kernels"},
    "torchkiln.packing._algorithms": {_NUMBA: "torchkiln.packing._streaming_kernels"},
    "torchkiln.packing._histogram": {_NUMBA: "torchkiln.packing._histogram_kernels"},
    "torchkiln.runtime._program": {_TRACING: "torchkiln.runtime.pipeline._build"},
    "torchkiln.runtime._together": {_TRACING: "torchkiln.runtime.pipeline._staged"},
    "torchkiln.runtime._looking_inside": {
        _TRACING: "torchkiln.runtime._inspection torchkiln.runtime._staging",
    },
    "torchkiln.runtime.compile._builder": {_TRACING: "torchkiln.runtime.compile._tracing"},
    "torchkiln.runtime.compile._helpers": {_BAR: "torchkiln.runtime.compile._progress"},
}
