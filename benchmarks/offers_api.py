"""A paged JSON API of job offers in a process of its own, which costs little beside whoever reads it.

`GET /offers?list=N` is the list of number N, newest first, in pages with a cursor for the next one. The offers of a
list have ids of their own; some are like one of another list under another id. The pages of list 0 are made when the
process starts, those of the others when they are asked for. `PUT /simulator` shows the lists, which are empty before,
and says what that has taken so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import msgspec

from benchmarks import environment
from penstock.simulators.lean import Headers, serving_lean

PATH, CONTROL = "/offers", "/simulator"
APART = timedelta(seconds=20)
"""So far apart are two offers of a list: a hundred thousand are three weeks."""

_ROLES = (
    *("Técnico/a de mantenimiento", "Camarero/a", "Mozo/a de almacén", "Desarrollador/a", "Administrativo/a contable"),
    *(
        "Comercial",
        "Enfermero/a",
        "Project Manager",
        "Conductor/a de camión",
        "Dependiente/a",
        "Soldador/a",
        "Cocinero/a",
    ),
    *("Ingeniero de datos", "Recepcionista", "Teleoperador/a", "Electricista", "Jefe/a de obra", "Analista funcional"),
    *("Consultor SAP", "Carretillero/a", "Auxiliar de geriatría", "Diseñador/a gráfico", "Responsable de tienda"),
    *("Operario/a de producción", "Fisioterapeuta", "Abogado/a", "Farmacéutico/a", "Delineante", "QA Engineer"),
)
_FIELDS = (
    *(
        "Python",
        "Java",
        "con inglés",
        "turno de noche",
        "sector industrial",
        "Frontend",
        "a media jornada",
        "logística",
    ),
    *("alimentación", "retail", "exportación", "con experiencia", "en remoto", "junior", "sénior", "fin de semana"),
    *("construcción", "automoción", "hospital", "e-commerce", "banca", "seguros", "energías renovables", "textil"),
)
_MARKS = ("", "", "", " (H/M)", " - incorporación inmediata", " ref. 20{}", " H/M/X", " ¡Urgente!", "", "")
_CITIES = (
    *(("Madrid", "Madrid"), ("Barcelona", "Barcelona"), ("Valencia", "Valencia"), ("Sevilla", "Sevilla")),
    *(("Zaragoza", "Zaragoza"), ("Málaga", "Málaga"), ("Murcia", "Murcia"), ("Palma", "Illes Balears")),
    *(("Bilbao", "Bizkaia"), ("Alicante", "Alicante"), ("Córdoba", "Córdoba"), ("Valladolid", "Valladolid")),
    *(("Vigo", "Pontevedra"), ("Gijón", "Asturias"), ("A Coruña", "A Coruña"), ("Granada", "Granada")),
    *(
        ("Getafe", "Madrid"),
        ("L'Hospitalet de Llobregat", "Barcelona"),
        ("Vitoria-Gasteiz", "Araba"),
        ("Elche", "Alicante"),
    ),
)
_FORMS = (" S.L.", " S.A.", "", " SLU", " Iberia", " y Asociados, S.L.", " Group", "")
_NAMES = ("Construcciones", "Logística", "Grupo", "Talleres", "Servicios", "Distribuciones", "Clínica", "Soluciones")
_PLACES = ("Mediterránea", "del Norte", "Ibérica", "Levante", "Castilla", "Costa", "Atlántica", "Central", "Global")
_TEXT = """buscamos una persona para nuestro equipo con ganas de aprender y experiencia en tareas de atención al cliente
gestión coordinación mantenimiento seguimiento calidad prevención almacén herramientas planificación jornada completa
contrato indefinido salario según convenio formación a cargo de la empresa posibilidad real de crecimiento carné de
conducir vehículo propio disponibilidad horaria ofimática nivel alto inglés valorable trabajo por turnos"""
_WORDS = _TEXT.split()
_CONTRACTS = ("indefinido", "temporal", "de duración determinada", "autónomo")
_COMPANIES = 12_000
_encode = msgspec.json.Encoder().encode


def _mixed(number: int, salt: int) -> int:
    """A number that seems to have nothing to do with it."""
    mixed = (number * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    mixed ^= mixed >> 29
    return (mixed * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF) >> 32


def _often(number: int, count: int) -> int:
    """One of so many; the first of them come much more often than the last."""
    share = (number % 65_536) / 65_536
    return int(count * share * share * share)


def company(number: int) -> str:
    name, place, form = _NAMES[number % 8], _PLACES[number // 8 % 9], _FORMS[number // 72 % 8]
    return f"{name} {place} {number // 576}{form}" if number >= 576 else f"{name} {place}{form}"


def offer(number: int, at: datetime) -> dict[str, Any]:
    """The offer of a number: some 1,100 bytes of JSON."""
    one, two, three = _mixed(number, 1), _mixed(number, 2), _mixed(number, 3)
    city, province = _CITIES[_often(two, len(_CITIES))]
    role, field = _ROLES[one % len(_ROLES)], _FIELDS[two // 7 % len(_FIELDS)]
    salary = 14_000 + three % 300 * 100
    start = three % len(_WORDS)
    words = [_WORDS[(start + step * (1 + one % 5)) % len(_WORDS)] for step in range(88)]
    employer = _often(one, _COMPANIES)
    return {
        "id": f"{number:012x}",
        "title": f"{role} {field}{_MARKS[three // 11 % 10].format(number % 100_000)}",
        "company": {"id": f"c{employer}", "name": company(employer)},
        "location": {"city": city, "province": province, "country": "España"},
        "link": f"https://jobs.example/{number:x}",
        "category": f"categoría {two % 40}",
        "contract": _CONTRACTS[one % 4],
        "salary": {"min": salary, "max": salary + two % 80 * 100, "period": "year"},
        "description": f"{number}: {' '.join(words)}.",
        "applications": three % 400,
        "published": at.isoformat().replace("+00:00", "Z"),
    }


class OffersApi:
    """Lists of offers."""

    def __init__(self, offers: int, size: int) -> None:
        self._offers = offers
        self._size = size
        self._newest = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
        self.shown = False
        self.asked = 0
        self._ready = [self._page(0, page) for page in range(offers // size)]

    @property
    def kilobytes(self) -> float:
        """The size of an offer."""
        return sum(map(len, self._ready)) / self._offers / 1_000

    def _page(self, listed: int, page: int) -> bytes:
        places = range(page * self._size, (page + 1) * self._size)
        found = [offer(listed * self._offers + place, self._newest - place * APART) for place in places]
        following = f"{page + 1}" if (page + 1) * self._size < self._offers else None
        return _encode({"data": found, "meta": {"next": following}})

    def answer(self, method: str, target: str, *_: object) -> tuple[int, Headers, bytes]:
        """What is sent to a request."""
        parts = urlsplit(target)
        if parts.path == CONTROL:
            self.shown = True
            used = resource.getrusage(resource.RUSAGE_SELF)
            about = {"asked": self.asked, "cpu_seconds": used.ru_utime + used.ru_stime}
            return _json(_encode(about))
        if method != "GET" or parts.path != PATH:
            return 404, ((b"content-length", b"0"),), b""
        given = parse_qs(parts.query)
        listed, page = (int(given.get(name, ["0"])[0]) for name in ("list", "cursor"))
        self.asked += 1
        if not self.shown:
            return _json(b'{"data":[],"meta":{"next":null}}')
        return _json(self._ready[page] if listed == 0 else self._page(listed, page))


def _json(content: bytes) -> tuple[int, Headers, bytes]:
    return 200, ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))), content


def control(about: dict[str, Any]) -> dict[str, Any]:
    """Show the lists; what has been asked so far and what that took."""
    with urlopen(Request(about["control_url"], b"{}", method="PUT"), timeout=60) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


@contextlib.contextmanager
def in_process(offers: int, size: int) -> Iterator[dict[str, Any]]:
    """The API in a process of its own: what it said of itself. It ends with the context, or with this process."""
    command = [sys.executable, "-m", "benchmarks.offers_api", "--offers", str(offers), "--size", str(size)]
    pipe = partial(subprocess.Popen, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=environment.ROOT)
    process = pipe(command)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.communicate()


async def _serve(api: OffersApi) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)  # nobody writes: it can be read when it is closed
    async with serving_lean(api.answer) as address:
        about = {"api_url": address, "control_url": f"{address}{CONTROL}", "kilobytes": round(api.kilobytes, 2)}
        sys.stdout.write(json.dumps(about) + "\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offers_api", description="Job offers in pages.")
    parser.add_argument("--offers", type=int, default=100_000, help="offers of a list (default %(default)s)")
    parser.add_argument("--size", type=int, default=1_000, help="offers of a page (default %(default)s)")
    options = parser.parse_args()
    asyncio.run(_serve(OffersApi(options.offers, options.size)))


if __name__ == "__main__":
    main()
