"""Tensors on a GPU as another library has them: structures of DLPack, made with ctypes over memory of a Dmabuf."""

import ctypes
import threading
import time

NEW = ctypes.pythonapi.PyCapsule_New
NEW.restype, NEW.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

#: What a capsule has lent, by the address of its structure.
_lent = {}


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


@DELETER
def _delete(address):
    owner, *_ = _lent.pop(address)
    owner.freeing.set()
    # As torch does it: Python's lock is free meanwhile.
    time.sleep(owner.pause)
    owner.deleted += 1
    owner.freed.set()


class Described:
    """`nbytes` at `offset` of a Dmabuf, or at `address`, as bytes; the rest as DLPack has it."""

    def __init__(self, memory, offset=0, nbytes=None, *, address=None, device=None, strides=None, flags=0, major=1):
        self.memory, self.flags, self.major, self.strides = memory, flags, major, strides
        self.nbytes = memory.nbytes - offset if nbytes is None else nbytes
        self.address = memory.data_ptr if address is None else address
        self.offset = offset
        self.device = device or memory.__dlpack_device__()
        self.streams = []
        self.pause, self.freeing = 0, threading.Event()
        self.deleted, self.freed = 0, threading.Event()


class Tensor(Described):
    """As torch and CuPy have it."""

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        assert max_version == (1, 0)
        self.streams.append(stream)
        return self.lend(Versioned, b"dltensor_versioned", major=self.major, minor=0, flags=self.flags)

    def lend(self, kind, name, **fields):
        shape = (ctypes.c_int64 * 1)(self.nbytes // abs((self.strides or (1,))[0]))
        strides = (ctypes.c_int64 * 1)(*self.strides) if self.strides else None
        tensor = DLTensor(self.address, *self.device, 1, 1, 8, 1, shape, strides, self.offset)
        managed = kind(tensor=tensor, deleter=_delete, **fields)
        at = ctypes.addressof(managed)
        _lent[at] = (self, managed, shape, strides)
        return NEW(at, name, None)


class OldTensor(Tensor):
    """As libraries had it before version 1 of DLPack."""

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.lend(Legacy, b"dltensor")


class Array(Described):
    """As numba has it."""

    @property
    def __cuda_array_interface__(self):
        described = {
            "version": 3,
            "shape": (self.nbytes // 4,),
            "typestr": "<f4",
            "data": (self.address + self.offset, self.flags == 1),
            "strides": self.strides,
            "stream": 2,
        }
        return described

    def __del__(self):
        self.deleted += 1
        self.freed.set()
