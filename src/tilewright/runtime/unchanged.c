/* Says whether facts hold (`base/facts.py`), without the interpreter.

   A dict that nobody has written since it was looked at is as it was: where Python counts writes of
   dicts, its count is compared, and what the dict holds only where that is another one.  Everything
   here happens under the interpreter's lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* Until 3.11 the count of writes is public; later ones say that it will go. */
#if PY_VERSION_HEX < 0x030c0000
#define WRITES(dict) (((PyDictObject *)(dict))->ma_version_tag)
#else
#define WRITES(dict) 0
#endif

/* parts: keys and values in turn.  whole: whether it holds nothing else.  writes: how many there had been
   of all dicts when it was last found to hold this, or 0. */
typedef struct {
  PyObject *dict, *parts;
  int whole;
  uint64_t writes;
} Held;

/* facts: holds all objects that the others point to. */
typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *facts, *types, *attributes, *answers, *lists;
  Held *dicts;
  Py_ssize_t count;
} Unchanged;

static int holds_all(const Held *held) {
  const Py_ssize_t pairs = PyTuple_GET_SIZE(held->parts) / 2;
  PyObject *const *parts = &PyTuple_GET_ITEM(held->parts, 0), *key, *value;
  Py_ssize_t at = 0, k = 0;
  while (k < pairs && PyDict_Next(held->dict, &at, &key, &value)) {
    if (key != parts[2 * k] || value != parts[2 * k + 1]) return 0;
    k++;
  }
  return k == pairs && !PyDict_Next(held->dict, &at, &key, &value);
}

static int holds_some(const Held *held) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(held->parts); k += 2) {
    PyObject *value = PyDict_GetItemWithError(held->dict, PyTuple_GET_ITEM(held->parts, k));
    if (value != PyTuple_GET_ITEM(held->parts, k + 1)) return 0;
  }
  return 1;
}

static int is_as_held(Held *held) {
  const uint64_t writes = WRITES(held->dict);
  if (writes && writes == held->writes) return 1;
  if (!(held->whole ? holds_all(held) : holds_some(held))) return 0;
  held->writes = writes;
  return 1;
}

static int is_list_of(PyObject *list, PyObject *items) {
  if (PyList_GET_SIZE(list) != PyTuple_GET_SIZE(items)) return 0;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(items); k++)
    if (PyList_GET_ITEM(list, k) != PyTuple_GET_ITEM(items, k)) return 0;
  return 1;
}

/* Compare what was found, which is let go of, with what was found before. */
static int is_same(PyObject *found, PyObject *before) {
  Py_XDECREF(found);
  return found == before;
}

static int are_facts(Unchanged *self) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->answers); k++) {
    PyObject *fact = PyTuple_GET_ITEM(self->answers, k);
    if (!is_same(PyObject_CallNoArgs(PyTuple_GET_ITEM(fact, 0)), PyTuple_GET_ITEM(fact, 1))) return 0;
  }
  for (Py_ssize_t k = 0; k < self->count; k++)
    if (!is_as_held(&self->dicts[k])) return 0;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->types); k++) {
    PyObject *fact = PyTuple_GET_ITEM(self->types, k);
    if ((PyObject *)Py_TYPE(PyTuple_GET_ITEM(fact, 0)) != PyTuple_GET_ITEM(fact, 1)) return 0;
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->attributes); k++) {
    PyObject *fact = PyTuple_GET_ITEM(self->attributes, k);
    PyObject *found = PyObject_GetAttr(PyTuple_GET_ITEM(fact, 0), PyTuple_GET_ITEM(fact, 1));
    if (!is_same(found, PyTuple_GET_ITEM(fact, 2))) return 0;
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->lists); k++) {
    PyObject *fact = PyTuple_GET_ITEM(self->lists, k);
    if (!is_list_of(PyTuple_GET_ITEM(fact, 0), PyTuple_GET_ITEM(fact, 1))) return 0;
  }
  return 1;
}

/* An error on the way is a fact that does not hold: Python, which is asked then, raises it. */
static PyObject *unchanged_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *named) {
  (void)arguments;
  if (PyVectorcall_NARGS(flags) != 0 || named) {
    PyErr_SetString(PyExc_TypeError, "facts are asked for without arguments");
    return NULL;
  }
  const int same = ((Unchanged *)self)->facts && are_facts((Unchanged *)self);
  if (!same) PyErr_Clear();
  return PyBool_FromLong(same);
}

static int are_lists(PyObject *lists) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(lists); k++) {
    PyObject *list, *items;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(lists, k), "O!O!", &PyList_Type, &list, &PyTuple_Type, &items)) return 0;
  }
  return 1;
}

/* Take one of `dicts`.  A class made in Python has one dict as long as it lives. */
static int hold(Held *held, PyObject *fact) {
  if (!PyArg_ParseTuple(fact, "OpO!", &held->dict, &held->whole, &PyTuple_Type, &held->parts)) return -1;
  if (PyType_Check(held->dict)) held->dict = ((PyTypeObject *)held->dict)->tp_dict;
  if (held->dict && PyDict_Check(held->dict)) return 0;
  PyErr_SetString(PyExc_TypeError, "items are those of a dict or of a class");
  return -1;
}

/* Take the five tuples of `Facts`, whose parts are of the types that it says. */
static PyObject *unchanged_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  (void)named;
  PyObject *dicts, *types, *attributes, *answers, *lists;
  if (!PyArg_ParseTuple(arguments, "O!O!O!O!O!", &PyTuple_Type, &dicts, &PyTuple_Type, &types, &PyTuple_Type,
                        &attributes, &PyTuple_Type, &answers, &PyTuple_Type, &lists) ||
      !are_lists(lists))
    return NULL;
  Unchanged *self = (Unchanged *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->call = unchanged_call;
  self->facts = Py_NewRef(arguments);
  self->types = types;
  self->attributes = attributes;
  self->answers = answers;
  self->lists = lists;
  self->dicts = (Held *)PyMem_Calloc((size_t)PyTuple_GET_SIZE(dicts) + 1, sizeof(Held));
  if (!self->dicts) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  for (; self->count < PyTuple_GET_SIZE(dicts); self->count++) {
    if (hold(&self->dicts[self->count], PyTuple_GET_ITEM(dicts, self->count))) {
      Py_DECREF(self);
      return NULL;
    }
  }
  return (PyObject *)self;
}

static int unchanged_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(((Unchanged *)self)->facts);
  return 0;
}

static int unchanged_clear(PyObject *self) {
  Py_CLEAR(((Unchanged *)self)->facts);
  return 0;
}

static void unchanged_free(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  unchanged_clear(self);
  PyMem_Free(((Unchanged *)self)->dicts);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyMemberDef unchanged_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Unchanged, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot unchanged_slots[] = {
    {Py_tp_new, unchanged_new},           {Py_tp_call, PyVectorcall_Call},  {Py_tp_members, unchanged_members},
    {Py_tp_traverse, unchanged_traverse}, {Py_tp_clear, unchanged_clear}, {Py_tp_dealloc, unchanged_free},
    {0, NULL},
};
static PyType_Spec unchanged_spec = {"tilewright.runtime.unchanged.Unchanged", sizeof(Unchanged), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                                     unchanged_slots};

/* Return the type. */
__attribute__((visibility("default"))) PyObject *tilewright_unchanged(void) {
  return PyType_FromSpec(&unchanged_spec);
}
