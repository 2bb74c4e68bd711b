"""Words that say nothing about an offer, in Spanish, Catalan and English: in lower case, without accents."""

from __future__ import annotations

from collections.abc import Iterable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _by_first(phrases: Iterable[tuple[str, ...]]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The longest first."""
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    for phrase in sorted(phrases, key=lambda phrase: (-len(phrase), phrase)):
        found[phrase[0]] = (*found.get(phrase[0], ()), phrase)
    return found


def _phrases(text: str) -> list[tuple[str, ...]]:
    return [tuple(line.split()) for line in text.splitlines() if line.strip()]


_EITHER = _phrases("""
    urgente
    muy urgente
    urgent
    urgently
    molt urgent
    super urgente
    urgente incorporacion
    incorporacion urgente
    incorporacion inmediata
    con incorporacion inmediata
    inmediata incorporacion
    incorporacio immediata
    immediate start
    immediate hire
    start immediately
    we are hiring
    we re hiring
    hiring now
""")
_BEFORE = _phrases("""
    se busca
    se buscan
    se necesita
    se necesitan
    se precisa
    se precisan
    se requiere
    se requieren
    es busca
    es busquen
    es necessita
    es necessiten
    buscamos
    busquem
    necesitamos
    necessitem
    seleccionamos
    oferta de empleo
    oferta de trabajo
    oferta laboral
    oferta de feina
    vacante
    now hiring
    job offer
""")
LEADING = _by_first([*_EITHER, *_BEFORE])
"""Phrases before a title, by their first word."""
TRAILING = _by_first(phrase[::-1] for phrase in _EITHER)
"""Phrases after a title, reversed, by their last word."""
URGENT_KINDS = _words("""
    care response repair repairs delivery treatment
    transporte transport mensajeria missatgeria paqueteria envio envios reparto entrega entregas correo carga
    logistica servicio servei atencion atencio asistencia assistencia cuidado cirugia medicina
""")
"""What can be urgent as a kind of work."""
LETTERED = _words("turno torn grupo grup tipo tipus nivel nivell bloque equipo equip serie clase plan zona linea")
"""What has letters for names: "turno/A" is no mark of gender."""
NOISE = _words("""
    urgente urgent urgently muy incorporacion incorporacio inmediata immediata immediate ya hoy now today start
    unete uneix te join us our team a al el la en con nuestro nuestra equipo nosotros esperamos que esperas
    buscamos busquem estamos contratando contratamos contratacion hiring we are re oferta ofertas oportunidad gran nueva
    ultima ultimas plaza plazas vacante vacantes trabaja ven apuntate inscribete apply no lo dejes escapar empieza
    tu eres crece
""")
"""A cry (what is between exclamation marks) of these words alone is not part of a title."""
BARE_FORMS = _words("""
    sl slu sll slp slne sa sau srl srlu scoop sccl scp aie ute
    inc incorporated llc llp ltd limited plc corp corporation gmbh ag kg kgaa ohg bv nv sas sarl sasu spzoo
    oy oyj ab aps lda ltda pty se
""")
"""Legal forms as one word at the end of a name."""
DOTTED_FORMS = BARE_FORMS | _words("sal sad spa as cb sc sca ca scl")
"""Legal forms as letters with dots, or apart. Without dots, some of these are words: a hotel and spa."""
LONG_FORMS = _phrases("""
    sociedad limitada unipersonal
    sociedad anonima unipersonal
    sociedad limitada laboral
    sociedad limitada profesional
    sociedad limitada
    sociedad anonima
    sociedad cooperativa
    societat limitada
    societat anonima
    s coop
    s com
    sp z o o
    comunidad de bienes
""")
ANONYMOUS = _words("confidencial confidential anonima anonimo anonymous desconocida desconocido unknown na") | {
    "empresa confidencial",
    "empresa anonima",
    "empresa privada",
    "empresa lider",
    "empresa del sector",
    "importante empresa",
    "importante empresa del sector",
    "company confidential",
    "confidential company",
    "n a",
}
"""Under these names there are many companies."""
