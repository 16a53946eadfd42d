cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t

from kbroker.base.clock cimport Timer
from kbroker.base.time_counts cimport TimeCounts
from kbroker.network.framing cimport Framer, ReceiveBuffers
from kbroker.network.memory cimport ConnectionMemory, MemoryHolder
from kbroker.network.reactor cimport Reactor
from kbroker.network.replies cimport Outgoing, ReplyQueue
from kbroker.network.states cimport Intake, Output
from kbroker.network.transport cimport Transport
from kbroker.wire.frames cimport FrameServer


cdef class Commons:
    cdef readonly Reactor reactor
    cdef FrameServer server
    cdef readonly object on_close
    cdef readonly Py_ssize_t max_request_bytes
    cdef readonly object submit
    cdef readonly ConnectionMemory memory
    cdef readonly object newcomers
    cdef public bint measures_time      # whether some client has a quota
    cdef ReceiveBuffers receive_buffers
    cdef bytearray send_buffer
    cdef Outgoing outgoing
    cdef int64_t sweeps
    cdef readonly int64_t opened
    cdef readonly int64_t closed
    cdef readonly int64_t requests
    cdef readonly dict traffic          # ListenerTraffic by the name of the listener
    cdef readonly int64_t cold_reads    # parts of files that a worker read, because the page cache lacked them
    cdef readonly int64_t cold_bytes
    cdef TimeCounts send_times
    cdef readonly int64_t failed_handshakes
    cdef object refusals                # the log of refused connections, created with the first one

    cdef object log_of_refusals(self)


@cython.final
cdef class ListenerTraffic:
    cdef readonly int64_t received_bytes
    cdef readonly int64_t sent_bytes


cdef class Connection(MemoryHolder):
    cdef readonly int64_t connection_id
    cdef readonly str client_host
    cdef readonly int client_port
    cdef readonly str listener_name
    cdef public object session          # an object of the frame server, which gets it with each frame
    cdef readonly Framer framer
    cdef readonly ReplyQueue replies
    cdef Commons commons
    cdef ListenerTraffic traffic
    cdef Reactor reactor
    cdef Transport transport
    cdef Intake intake
    cdef Output output
    cdef int64_t last_sequence      # the number of the last frame that was served
    cdef int64_t passed_sequence    # the last request that was answered or let the next pass
    cdef int64_t network_us     # time to receive and send since take_network_us, while it is measured
    cdef int64_t arrived_us     # when the last bytes arrived; 0 if times are not taken
    cdef int64_t watched_us     # when the reply was given whose sending is timed; 0 between such replies
    cdef int64_t watched_bytes  # left to send up to the end of that reply
    cdef Timer muting           # the timer that ends the muting; None while the peer is not muted
    cdef int64_t active_sweep   # the sweep before which the peer last made progress
    cdef Py_ssize_t counted_bytes
    cdef uint32_t missed_events     # events reported while the connection waited for a long turn

    cpdef reply(self, int64_t sequence, segments)
    cpdef await_login(self, Py_ssize_t largest_frame_bytes)
    cpdef end_login(self)
    cpdef keep_frame(self)
    cpdef let_next_pass(self, int64_t sequence)
    cpdef mute(self, int64_t time_ms)
    cpdef int64_t take_network_us(self) except -1
    cdef int refuse(self, reason, level) except -1
    cdef int end(self) except -1
    cdef bint is_stalled(self) noexcept
    cdef int stall(self) except -1
    cdef int flow(self) except -1
    cdef int resume(self) except -1
    cdef int take_turn(self, uint32_t events) except -1
    cdef bint may_read(self) except -1
    cdef int receive(self, bint is_full) except -1
    cdef int charge(self) except -1
    cdef bint serve_frames(self) except -1
    cdef bint serve_whole_frames(self) except -1
    cdef bint may_serve_after_writes(self) except -1
    cdef int serve_frame(self, uint8_t *frame, Py_ssize_t size) except -1
    cdef int fail(self, ssize_t size) except -1
    cdef int send(self) except -1
    cdef int start_warming(self) except -1
    cdef int set_interest(self, bint wants_out) except -1
    cdef int count_progress(self) except -1
    cdef int watch_reply(self, int64_t sequence) except -1
    cdef int count_sent(self, int64_t size) except -1
