/* Calls of a Program without the interpreter, where all is as it was found to be before: a call looks
   at its inputs, enters where they lie, makes its outputs and enters the native code.

   It knows nothing that the Python beside it does not: what is not exactly as expected is answered by
   None, with nothing done, and then that Python runs.  Everything here happens under the interpreter's
   lock but the native code itself. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* What extensions compiled for NumPy read of an array, unchanged since NumPy 1.7; `looked` lets Python
   make sure of it. */
typedef struct {
  PyObject_HEAD
  char *data;
  int rank;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
  int flags;
} Array;
#define ALIGNED 0x0100
#define WRITEABLE 0x0400

/* As in `segments.c`, whose kernels read it. */
typedef struct {
  char **buffers;
  void *team;
  long threads;
  const void *index;
  long *clock;
} Call;
#define NONE (-1L)
typedef long Function(const Call *call);

#define NEW(type, count) ((type *)PyMem_Calloc((size_t)(count) + 1, sizeof(type)))

/* ---- a frame: what one run at a time uses ------------------------------------------------------ */

/* The memory is a context's, which holds the frame and outlives it.
   makers: of the outputs, at `numbers` among the buffers; `order`: the results among them.
   threads: says how many there are, or None where one is enough.  failure: makes an outcome an error. */
typedef struct {
  PyObject_HEAD
  Call call;
  Function *function;
  PyObject *makers, *threads, *failure;
  Py_ssize_t results;
  long *numbers, *order;
} Frame;

static int longs(PyObject *values, long *out) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(values); k++) {
    out[k] = PyLong_AsLong(PyTuple_GET_ITEM(values, k));
    if (out[k] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

static PyObject *frame_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  (void)named;
  unsigned long long function, team, index;
  PyObject *addresses, *makers, *numbers, *order, *threads, *failure;
  if (!PyArg_ParseTuple(arguments, "KKKO!O!O!O!OO", &function, &team, &index, &PyTuple_Type, &addresses,
                        &PyTuple_Type, &makers, &PyTuple_Type, &numbers, &PyTuple_Type, &order, &threads,
                        &failure))
    return NULL;
  Frame *frame = (Frame *)type->tp_alloc(type, 0);
  if (!frame) return NULL;
  frame->function = (Function *)(uintptr_t)function;
  frame->makers = Py_NewRef(makers);
  frame->threads = Py_NewRef(threads);
  frame->failure = Py_NewRef(failure);
  frame->results = PyTuple_GET_SIZE(order);
  frame->numbers = NEW(long, PyTuple_GET_SIZE(numbers));
  frame->order = NEW(long, frame->results);
  char **buffers = NEW(char *, PyTuple_GET_SIZE(addresses));
  frame->call = (Call){buffers, (void *)(uintptr_t)team, 1, (const void *)(uintptr_t)index, NULL};
  if (!frame->numbers || !frame->order || !buffers) {
    Py_DECREF(frame);
    return PyErr_NoMemory();
  }
  int failed = longs(numbers, frame->numbers) || longs(order, frame->order);
  for (Py_ssize_t k = 0; !failed && k < PyTuple_GET_SIZE(addresses); k++) {
    buffers[k] = (char *)PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, k));
    failed = buffers[k] == NULL && PyErr_Occurred();
  }
  if (failed) Py_CLEAR(frame);
  return (PyObject *)frame;
}

static int frame_traverse(PyObject *self, visitproc visit, void *arg) {
  Frame *frame = (Frame *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(frame->makers);
  Py_VISIT(frame->threads);
  Py_VISIT(frame->failure);
  return 0;
}

static int frame_clear(PyObject *self) {
  Frame *frame = (Frame *)self;
  Py_CLEAR(frame->makers);
  Py_CLEAR(frame->threads);
  Py_CLEAR(frame->failure);
  return 0;
}

static void frame_free(PyObject *self) {
  Frame *frame = (Frame *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  frame_clear(self);
  PyMem_Free(frame->call.buffers);
  PyMem_Free(frame->numbers);
  PyMem_Free(frame->order);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyType_Slot frame_slots[] = {
    {Py_tp_new, frame_new},     {Py_tp_traverse, frame_traverse}, {Py_tp_clear, frame_clear},
    {Py_tp_dealloc, frame_free}, {0, NULL},
};
static PyType_Spec frame_spec = {
    "tilewright.runtime.calls.Frame", sizeof(Frame), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, frame_slots};

/* Raise what an outcome of the native code means. */
static void raise_failure(Frame *frame, long outcome) {
  PyObject *error = PyObject_CallFunction(frame->failure, "l", outcome);
  if (!error) return;
  PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_DECREF(error);
}

/* Find where a tensor is by `data_ptr`, a method of its type, or an array, for which that is NULL. */
static int find(PyObject *value, PyObject *data_ptr, char **where) {
  if (!data_ptr) {
    *where = ((Array *)value)->data;
    return 0;
  }
  PyObject *found = PyObject_CallOneArg(data_ptr, value);
  if (!found) return -1;
  *where = (char *)PyLong_AsVoidPtr(found);
  Py_DECREF(found);
  return *where == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Return the outputs of a run whose inputs have been entered. */
static PyObject *frame_run(Frame *frame, PyObject *data_ptr) {
  Py_ssize_t count = PyTuple_GET_SIZE(frame->makers);
  PyObject *outputs[count + 1], *results = NULL;
  Py_ssize_t made = 0;
  for (; made < count; made++) {
    PyObject *output = PyObject_CallNoArgs(PyTuple_GET_ITEM(frame->makers, made));
    if (!output) goto end;
    outputs[made] = output;
    if (find(output, data_ptr, &frame->call.buffers[frame->numbers[made]])) {
      made++;
      goto end;
    }
  }
  if (frame->threads != Py_None) {
    PyObject *threads = PyObject_CallNoArgs(frame->threads);
    if (!threads) goto end;
    frame->call.threads = PyLong_AsLong(threads);
    Py_DECREF(threads);
    if (frame->call.threads == -1 && PyErr_Occurred()) goto end;
  }
  long outcome;
  Py_BEGIN_ALLOW_THREADS
  outcome = frame->function(&frame->call);
  Py_END_ALLOW_THREADS
  if (outcome != NONE) {
    raise_failure(frame, outcome);
    goto end;
  }
  results = PyTuple_New(frame->results);
  for (Py_ssize_t k = 0; results && k < frame->results; k++)
    PyTuple_SET_ITEM(results, k, Py_NewRef(outputs[frame->order[k]]));
end:
  while (made) Py_DECREF(outputs[--made]);
  return results;
}

/* ---- a call ------------------------------------------------------------------------------------ */

/* What an input must be.  same: the very one, or NULL for any; only to be compared, as it lives no longer
   than what is kept of it.  number: of its buffer, or -1 where the run does not read it.  low, high: the
   bytes that it covers.
   Of an array: flags: those that it must have.  form: its shape, then its strides.
   Of a tensor that must be the very one: address, version: what torch says of it. */
typedef struct {
  PyObject *dtype;
  const PyObject *same;
  long number;
  int is_written, rank, flags;
  Py_ssize_t low, high, *form;
  char *address;
  long long version;
} Expected;

/* idle: contexts, of which each has a `frame`.  keeper: has as `_last` what `made` refers to while what is
   kept is current; None where nothing is kept.  made: a weak reference, so that this keeps nothing of it.
   places: where what is kept lies, in pairs of a buffer's number and an address.
   Of arrays: type: theirs.
   Of tensors: alike: compares all of them.  data_ptr: where one is.  asks: whether gradients are on, which
   must be `gradients`.  forward: of a module, whose `_current_level` is below 0 outside of forward mode.
   count: hears which tensors were written. */
typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *idle, *keeper, *made, *type;
  PyObject *alike, *data_ptr, *asks, *gradients, *forward, *count;
  Expected *expected;
  Py_ssize_t inputs, kept, written;
  unsigned long long *places;
} Quick;

static PyObject *name_frame, *name_last, *name_version, *name_level;

static int is_expected(PyObject *value, const Expected *wanted) {
  const Array *array = (const Array *)value;
  if (array->dtype != wanted->dtype || array->rank != wanted->rank) return 0;
  if ((array->flags & wanted->flags) != wanted->flags) return 0;
  for (int k = 0; k < wanted->rank; k++)
    if (array->shape[k] != wanted->form[k] || array->strides[k] != wanted->form[wanted->rank + k]) return 0;
  return 1;
}

/* Say whether tensors are as those before and torch's modes too; -1 for an error. */
static int are_alike(const Quick *call, PyObject *const *values) {
  PyObject *level = PyDict_GetItemWithError(call->forward, name_level);
  if (!level || !PyLong_Check(level) || PyLong_AsLong(level) >= 0) return PyErr_Occurred() ? -1 : 0;
  PyObject *asks = PyObject_CallNoArgs(call->asks);
  Py_XDECREF(asks); /* true and false live for ever */
  if (asks != call->gradients) return asks ? 0 : -1;
  PyObject *same = PyObject_Vectorcall(call->alike, values, (size_t)call->inputs, NULL);
  Py_XDECREF(same);
  return same ? same == Py_True : -1;
}

/* Say whether a tensor has been written as often as it had been; not where writes are not counted. */
static int is_unwritten(PyObject *value, const Expected *wanted) {
  PyObject *version = PyObject_GetAttr(value, name_version);
  int is_same = version && PyLong_AsLongLong(version) == wanted->version;
  Py_XDECREF(version);
  if (PyErr_Occurred()) PyErr_Clear();
  return is_same;
}

/* Return what is kept, to be held while it is read, or None where nothing is; NULL where it is not current,
   or for an error. */
static PyObject *what_is_kept(const Quick *call) {
  if (call->keeper == Py_None) Py_RETURN_NONE;
  PyObject *made = PyObject_CallNoArgs(call->made);
  PyObject *last = made && made != Py_None ? PyObject_GetAttr(call->keeper, name_last) : NULL;
  Py_XDECREF(last);
  if (last == NULL || last != made) Py_CLEAR(made);
  return made;
}

/* Say whether all inputs are as expected, and find where they are; -1 for an error. */
static int are_expected(const Quick *call, PyObject *const *values, char **where) {
  for (Py_ssize_t k = 0; k < call->inputs; k++) {
    const Expected *wanted = &call->expected[k];
    if (wanted->same && values[k] != wanted->same) return 0;
    if (call->type && ((PyObject *)Py_TYPE(values[k]) != call->type || !is_expected(values[k], wanted))) return 0;
  }
  if (!call->type) {
    int alike = are_alike(call, values);
    if (alike != 1) return alike;
  }
  for (Py_ssize_t k = 0; k < call->inputs; k++) {
    const Expected *wanted = &call->expected[k];
    if (find(values[k], call->data_ptr, &where[k])) return -1;
    if (!call->type && wanted->same && (where[k] != wanted->address || !is_unwritten(values[k], wanted))) return 0;
  }
  return 1;
}

/* Say whether an input that lies elsewhere than before may share memory with another one, and either
   is written. */
static int any_shared(const Quick *call, char *const *where, char *const *buffers) {
  for (Py_ssize_t k = 0; k < call->inputs; k++) {
    const Expected *one = &call->expected[k];
    if (one->number < 0 || where[k] == buffers[one->number]) continue;
    for (Py_ssize_t j = 0; j < call->inputs; j++) {
      const Expected *other = &call->expected[j];
      if (j == k || other->number < 0 || !(one->is_written || other->is_written)) continue;
      if (where[k] + one->low < where[j] + other->high && where[j] + other->low < where[k] + one->high) return 1;
    }
  }
  return 0;
}

/* Let torch know what was written, as a run that raises may have too; raise what is raised already. */
static int count_writes(const Quick *call, PyObject *const *values) {
#if PY_VERSION_HEX >= 0x030c0000
  PyObject *raised = PyErr_GetRaisedException();
#else
  PyObject *type, *raised, *trace;
  PyErr_Fetch(&type, &raised, &trace);
#endif
  PyObject *written = PyTuple_New(call->written), *counted = NULL;
  Py_ssize_t at = 0;
  for (Py_ssize_t k = 0; written && k < call->inputs; k++)
    if (call->expected[k].is_written) PyTuple_SET_ITEM(written, at++, Py_NewRef(values[k]));
  if (written) counted = PyObject_CallOneArg(call->count, written);
  Py_XDECREF(written);
  Py_XDECREF(counted);
#if PY_VERSION_HEX >= 0x030c0000
  if (raised) PyErr_SetRaisedException(raised);
#else
  if (type) PyErr_Restore(type, raised, trace);
#endif
  return counted ? 0 : -1;
}

/* Enter where inputs lie, and run; None where a context cannot do this. */
static PyObject *run_in(const Quick *call, PyObject *context, PyObject *const *values, char *const *where) {
  PyObject *found = PyObject_GetAttr(context, name_frame);
  if (!found || found == Py_None) return found;
  Frame *frame = (Frame *)found;
  char **buffers = frame->call.buffers;
  if (call->written && any_shared(call, where, buffers)) {
    Py_DECREF(found);
    Py_RETURN_NONE;
  }
  for (Py_ssize_t k = 0; k < call->inputs; k++)
    if (call->expected[k].number >= 0) buffers[call->expected[k].number] = where[k];
  for (Py_ssize_t k = 0; k < call->kept; k++)
    buffers[call->places[2 * k]] = (char *)(uintptr_t)call->places[2 * k + 1];
  PyObject *results = frame_run(frame, call->data_ptr);
  if (call->count && call->written && count_writes(call, values)) Py_CLEAR(results);
  Py_DECREF(found);
  return results;
}

/* Return the outputs for one argument, a tuple or list of inputs; None for others than expected, and
   where all contexts are in use. */
static PyObject *quick_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *named) {
  const Quick *call = (const Quick *)self;
  if (PyVectorcall_NARGS(flags) != 1 || named) {
    PyErr_SetString(PyExc_TypeError, "a call takes the sequence of its inputs");
    return NULL;
  }
  PyObject *given = arguments[0];
  if (!PyTuple_CheckExact(given) && !PyList_CheckExact(given)) Py_RETURN_NONE;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
  if (count != call->inputs) Py_RETURN_NONE;
  /* A list may be changed by others while something else runs. */
  PyObject *values[count + 1], *results = NULL;
  char *where[count + 1];
  for (Py_ssize_t k = 0; k < count; k++) values[k] = Py_NewRef(PySequence_Fast_GET_ITEM(given, k));
  int expected = are_expected(call, values, where);
  PyObject *kept = expected == 1 ? what_is_kept(call) : NULL;
  Py_ssize_t idle = PyList_GET_SIZE(call->idle);
  if (kept && idle) {
    PyObject *context = Py_NewRef(PyList_GET_ITEM(call->idle, idle - 1));
    if (PyList_SetSlice(call->idle, idle - 1, idle, NULL) == 0) {
      results = run_in(call, context, values, where);
      if (PyList_Append(call->idle, context)) Py_CLEAR(results);
    }
    Py_DECREF(context);
  } else if (!PyErr_Occurred()) {
    results = Py_NewRef(Py_None);
  }
  Py_XDECREF(kept);
  for (Py_ssize_t k = 0; k < count; k++) Py_DECREF(values[k]);
  return results;
}

static int expect(Expected *expected, PyObject *row) {
  PyObject *same, *dtype, *form;
  unsigned long long address;
  if (!PyArg_ParseTuple(row, "OlpnnOO!KL", &same, &expected->number, &expected->is_written, &expected->low,
                        &expected->high, &dtype, &PyTuple_Type, &form, &address, &expected->version))
    return -1;
  expected->same = same == Py_None ? NULL : same;
  expected->dtype = Py_NewRef(dtype);
  expected->rank = (int)(PyTuple_GET_SIZE(form) / 2);
  expected->flags = ALIGNED | (expected->is_written ? WRITEABLE : 0);
  expected->address = (char *)(uintptr_t)address;
  expected->form = NEW(Py_ssize_t, 2 * expected->rank);
  if (!expected->form) {
    PyErr_NoMemory();
    return -1;
  }
  for (int k = 0; k < 2 * expected->rank; k++) {
    expected->form[k] = PyLong_AsSsize_t(PyTuple_GET_ITEM(form, k));
    if (expected->form[k] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

static PyObject *quick_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  (void)named;
  PyObject *idle, *keeper, *made, *rows, *places, *kind, *arrays = NULL;
  PyObject *alike = NULL, *data_ptr = NULL, *asks = NULL, *gradients = NULL, *forward = NULL, *count = NULL;
  if (!PyArg_ParseTuple(arguments, "O!OOO!O!O!", &PyList_Type, &idle, &keeper, &made, &PyTuple_Type, &rows,
                        &PyTuple_Type, &places, &PyTuple_Type, &kind))
    return NULL;
  int parsed = PyTuple_GET_SIZE(kind) == 1
                   ? PyArg_ParseTuple(kind, "O", &arrays)
                   : PyArg_ParseTuple(kind, "OOOOO!O", &alike, &data_ptr, &asks, &gradients, &PyDict_Type,
                                      &forward, &count);
  if (!parsed) return NULL;
  Quick *call = (Quick *)type->tp_alloc(type, 0);
  if (!call) return NULL;
  call->call = quick_call;
  call->idle = Py_NewRef(idle);
  call->keeper = Py_NewRef(keeper);
  call->made = Py_NewRef(made);
  call->type = Py_XNewRef(arrays);
  call->alike = Py_XNewRef(alike);
  call->data_ptr = Py_XNewRef(data_ptr);
  call->asks = Py_XNewRef(asks);
  call->gradients = Py_XNewRef(gradients);
  call->forward = Py_XNewRef(forward);
  call->count = Py_XNewRef(count);
  call->kept = PyTuple_GET_SIZE(places) / 2;
  call->places = NEW(unsigned long long, 2 * call->kept);
  call->expected = NEW(Expected, PyTuple_GET_SIZE(rows));
  if (!call->places || !call->expected) {
    Py_DECREF(call);
    return PyErr_NoMemory();
  }
  int failed = 0;
  for (Py_ssize_t k = 0; !failed && k < 2 * call->kept; k++) {
    call->places[k] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(places, k));
    failed = call->places[k] == (unsigned long long)-1 && PyErr_Occurred();
  }
  for (; !failed && call->inputs < PyTuple_GET_SIZE(rows); call->inputs++) {
    Expected *expected = &call->expected[call->inputs];
    failed = expect(expected, PyTuple_GET_ITEM(rows, call->inputs));
    call->written += expected->is_written;
  }
  if (failed) Py_CLEAR(call);
  return (PyObject *)call;
}

static int quick_traverse(PyObject *self, visitproc visit, void *arg) {
  Quick *call = (Quick *)self;
  Py_VISIT(Py_TYPE(self));
  for (PyObject **held = &call->idle; held <= &call->count; held++) Py_VISIT(*held);
  for (Py_ssize_t k = 0; k < call->inputs; k++) Py_VISIT(call->expected[k].dtype);
  return 0;
}

/* What is cleared runs nothing any more: it expects as many inputs as nobody has. */
static int quick_clear(PyObject *self) {
  Quick *call = (Quick *)self;
  Py_ssize_t inputs = call->inputs;
  call->inputs = -1;
  for (Py_ssize_t k = 0; k < inputs; k++) {
    Py_CLEAR(call->expected[k].dtype);
    PyMem_Free(call->expected[k].form);
  }
  for (PyObject **held = &call->idle; held <= &call->count; held++) Py_CLEAR(*held);
  return 0;
}

static void quick_free(PyObject *self) {
  Quick *call = (Quick *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  quick_clear(self);
  PyMem_Free(call->expected);
  PyMem_Free(call->places);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyMemberDef quick_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Quick, call), READONLY, NULL},
    {"made", T_OBJECT_EX, offsetof(Quick, made), READONLY, "refers to what is kept that it reads"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot quick_slots[] = {
    {Py_tp_new, quick_new},           {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, quick_members},
    {Py_tp_traverse, quick_traverse}, {Py_tp_clear, quick_clear},      {Py_tp_dealloc, quick_free},
    {0, NULL},
};
static PyType_Spec quick_spec = {"tilewright.runtime.calls.Quick", sizeof(Quick), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, quick_slots};

/* ---- a front: a call of the function whose graph runs ------------------------------------------ */

/* holds: says whether the function is what it was.  quick: the call of its graph, which gives a tuple of one
   output at least, or None; its inputs are `sources` many: `from[k]` is the number of an argument, or -1 - that
   of one of `state`.  arity: of how many arguments a call is.  tallies: `counters` many, arrays of which each
   number is one more after a call. */
typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *holds, *quick, *state;
  Py_ssize_t arity, sources, counters;
  long *from;
  Py_buffer *tallies;
} Front;

static void count_call(const Py_buffer *tally) {
  const Py_ssize_t count = tally->len / tally->itemsize;
  if (*tally->format == 'f')
    for (Py_ssize_t k = 0; k < count; k++) ((float *)tally->buf)[k]++;
  else
    for (Py_ssize_t k = 0; k < count; k++) ((long *)tally->buf)[k]++;
}

/* Return the one result for these arguments; None where a call is not as those before. */
static PyObject *front_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *named) {
  const Front *front = (const Front *)self;
  if (PyVectorcall_NARGS(flags) != front->arity || named) Py_RETURN_NONE;
  PyObject *holds = PyObject_CallNoArgs(front->holds);
  if (!holds) return NULL;
  const int held = holds == Py_True;
  Py_DECREF(holds);
  if (!held) Py_RETURN_NONE;
  PyObject *inputs = PyTuple_New(front->sources);
  if (!inputs) return NULL;
  for (Py_ssize_t k = 0; k < front->sources; k++) {
    const long from = front->from[k];
    PyObject *input = from >= 0 ? arguments[from] : PyTuple_GET_ITEM(front->state, -1 - from);
    PyTuple_SET_ITEM(inputs, k, Py_NewRef(input));
  }
  PyObject *outputs = PyObject_CallOneArg(front->quick, inputs);
  Py_DECREF(inputs);
  if (!outputs || outputs == Py_None) return outputs;
  for (Py_ssize_t k = 0; k < front->counters; k++) count_call(&front->tallies[k]);
  PyObject *result = Py_NewRef(PyTuple_GET_ITEM(outputs, 0));
  Py_DECREF(outputs);
  return result;
}

/* Take arrays of float or long that lie without gaps; they stay where they are as long as they are held. */
static int take_tallies(Front *front, PyObject *tallies) {
  front->tallies = NEW(Py_buffer, PyTuple_GET_SIZE(tallies));
  if (!front->tallies) return PyErr_NoMemory(), -1;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tallies); k++) {
    Py_buffer *tally = &front->tallies[k];
    const int flags = PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS;
    if (PyObject_GetBuffer(PyTuple_GET_ITEM(tallies, k), tally, flags)) return -1;
    front->counters++;
    if (strcmp(tally->format, "f") && strcmp(tally->format, "l")) {
      PyErr_SetString(PyExc_TypeError, "calls are counted in arrays of float or long");
      return -1;
    }
  }
  return 0;
}

static PyObject *front_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  (void)named;
  PyObject *holds, *quick, *sources, *state, *tallies;
  Py_ssize_t arity;
  if (!PyArg_ParseTuple(arguments, "OOO!O!nO!", &holds, &quick, &PyTuple_Type, &sources, &PyTuple_Type, &state,
                        &arity, &PyTuple_Type, &tallies))
    return NULL;
  Front *front = (Front *)type->tp_alloc(type, 0);
  if (!front) return NULL;
  front->call = front_call;
  front->holds = Py_NewRef(holds);
  front->quick = Py_NewRef(quick);
  front->state = Py_NewRef(state);
  front->arity = arity;
  front->sources = PyTuple_GET_SIZE(sources);
  front->from = NEW(long, front->sources);
  if (!front->from) PyErr_NoMemory();
  int failed = !front->from || longs(sources, front->from);
  for (Py_ssize_t k = 0; !failed && k < front->sources; k++) {
    const long from = front->from[k], last = from >= 0 ? arity : PyTuple_GET_SIZE(state);
    failed = (from >= 0 ? from : -1 - from) >= last;
    if (failed) PyErr_SetString(PyExc_IndexError, "a source is no argument's and none of the state's");
  }
  if (failed || take_tallies(front, tallies)) Py_CLEAR(front);
  return (PyObject *)front;
}

static int front_traverse(PyObject *self, visitproc visit, void *arg) {
  Front *front = (Front *)self;
  Py_VISIT(Py_TYPE(self));
  for (PyObject **held = &front->holds; held <= &front->state; held++) Py_VISIT(*held);
  return 0;
}

/* What is cleared runs nothing any more: a call of it has as many arguments as none has. */
static int front_clear(PyObject *self) {
  Front *front = (Front *)self;
  front->arity = -1;
  for (PyObject **held = &front->holds; held <= &front->state; held++) Py_CLEAR(*held);
  return 0;
}

static void front_free(PyObject *self) {
  Front *front = (Front *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  front_clear(self);
  while (front->counters > 0) PyBuffer_Release(&front->tallies[--front->counters]);
  PyMem_Free(front->tallies);
  PyMem_Free(front->from);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyMemberDef front_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Front, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot front_slots[] = {
    {Py_tp_new, front_new},           {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, front_members},
    {Py_tp_traverse, front_traverse}, {Py_tp_clear, front_clear},      {Py_tp_dealloc, front_free},
    {0, NULL},
};
static PyType_Spec front_spec = {"tilewright.runtime.calls.Front", sizeof(Front), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, front_slots};

/* ---- what Python finds here -------------------------------------------------------------------- */

#define VISIBLE __attribute__((visibility("default")))

/* Return the three types. */
VISIBLE PyObject *tilewright_types(void) {
  name_frame = PyUnicode_InternFromString("frame");
  name_last = PyUnicode_InternFromString("_last");
  name_version = PyUnicode_InternFromString("_version");
  name_level = PyUnicode_InternFromString("_current_level");
  if (!name_frame || !name_last || !name_version || !name_level) return NULL;
  PyObject *frame = PyType_FromSpec(&frame_spec), *call = PyType_FromSpec(&quick_spec);
  PyObject *front = PyType_FromSpec(&front_spec);
  PyObject *types = frame && call && front ? PyTuple_Pack(3, frame, call, front) : NULL;
  Py_XDECREF(frame);
  Py_XDECREF(call);
  Py_XDECREF(front);
  return types;
}

/* Return what is read of an array: address, rank, dtype, the two flags, and shape and strides if the
   rank is as said, as otherwise nothing is where it is thought to be. */
VISIBLE PyObject *tilewright_looked(PyObject *value, long rank) {
  const Array *array = (const Array *)value;
  PyObject *form = PyTuple_New(array->rank == rank ? 2 * rank : 0);
  for (long k = 0; form && k < PyTuple_GET_SIZE(form); k++)
    PyTuple_SET_ITEM(form, k, PyLong_FromSsize_t(k < rank ? array->shape[k] : array->strides[k - rank]));
  if (!form) return NULL;
  return Py_BuildValue("(KiKiN)", (unsigned long long)(uintptr_t)array->data, array->rank,
                       (unsigned long long)(uintptr_t)array->dtype, array->flags & (ALIGNED | WRITEABLE), form);
}
