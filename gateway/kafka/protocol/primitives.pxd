# The C types of primitives.py. Cython reads this file; Python does not.
cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Reader:
    cdef const unsigned char[::1] data
    cdef object view
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef Py_ssize_t elements_left

    cdef Py_ssize_t take(self, Py_ssize_t size) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint boolean(self) except? -1
    @cython.locals(at=Py_ssize_t)
    cpdef int int8(self) except? -1
    @cython.locals(at=Py_ssize_t)
    cpdef int int16(self) except? -1
    @cython.locals(at=Py_ssize_t)
    cpdef int int32(self) except? -1
    @cython.locals(at=Py_ssize_t, high="unsigned int", low="unsigned int")
    cpdef int64_t int64(self) except? -1
    @cython.locals(at=Py_ssize_t)
    cpdef double float64(self) except? -1
    @cython.locals(at=Py_ssize_t)
    cpdef object uuid(self)
    @cython.locals(value="long long", shift=int, byte=int)
    cpdef Py_ssize_t uvarint(self) except -1
    @cython.locals(size="long long")
    cdef Py_ssize_t nullable_length(self, bint compact, bint short) except? -2
    @cython.locals(size=Py_ssize_t)
    cpdef object string(self, bint compact)
    @cython.locals(size=Py_ssize_t)
    cpdef object nullable_string(self, bint compact)
    @cython.locals(at=Py_ssize_t)
    cdef object text(self, Py_ssize_t size)
    @cython.locals(size=Py_ssize_t)
    cpdef object octets(self, bint compact)
    @cython.locals(size=Py_ssize_t)
    cpdef object nullable_octets(self, bint compact)
    @cython.locals(at=Py_ssize_t)
    cdef object copied(self, Py_ssize_t size)
    @cython.locals(size=Py_ssize_t)
    cpdef object records(self, bint compact)
    @cython.locals(size=Py_ssize_t)
    cpdef object nullable_records(self, bint compact)
    @cython.locals(at=Py_ssize_t)
    cdef object slice_of(self, Py_ssize_t size)
    @cython.locals(count=Py_ssize_t)
    cpdef Py_ssize_t array_length(self, bint compact, Py_ssize_t element_bytes_min) except -1
    @cython.locals(count=Py_ssize_t)
    cpdef Py_ssize_t nullable_array_length(self, bint compact, Py_ssize_t element_bytes_min) except? -2
    cpdef bint present(self) except? -1
    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t tag_end(self) except -1
    cpdef bint check_tag_end(self, Py_ssize_t end) except -1
    cpdef bint skip_tag(self, Py_ssize_t end) except -1
    @cython.locals(left=Py_ssize_t)
    cpdef bint skip_tags(self) except -1
    cpdef Py_ssize_t position(self)
    cpdef bint finish(self) except -1


@cython.final
cdef class Writer:
    cdef bytearray buffer
    cdef Py_ssize_t at
    cdef Py_ssize_t capacity
    cdef list parts
    cdef Py_ssize_t cut_bytes

    cdef Py_ssize_t take(self, Py_ssize_t size) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint boolean(self, bint value) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint int8(self, signed char value) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint int16(self, short value) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint int32(self, int value) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint int64(self, long long value) except -1
    cpdef bint float64(self, double value) except -1
    cpdef bint uuid(self, object value) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint uvarint(self, Py_ssize_t value) except -1
    @cython.locals(encoded=bytes, size=Py_ssize_t)
    cpdef bint string(self, str value, bint compact) except -1
    cpdef bint nullable_string(self, object value, bint compact) except -1
    cpdef bint octets(self, object value, bint compact) except -1
    cpdef bint nullable_octets(self, object value, bint compact) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint raw(self, object value, Py_ssize_t size) except -1
    cpdef bint records(self, object buffers, Py_ssize_t size_bytes, bint compact) except -1
    cpdef bint nullable_records(self, object buffers, Py_ssize_t size_bytes, bint compact) except -1
    cpdef bint array_length(self, Py_ssize_t count, bint compact) except -1
    cpdef bint present(self, bint value) except -1
    cpdef Py_ssize_t begin_tag(self, Py_ssize_t tag) except -1
    @cython.locals(size=Py_ssize_t, shift=Py_ssize_t, index=Py_ssize_t, left=Py_ssize_t)
    cpdef bint end_tag(self, Py_ssize_t start) except -1
    @cython.locals(total=Py_ssize_t)
    cpdef list finish(self)
